"""Choosing: one SubNet of a finished search by a rule, or two SubNets side by side."""

from tasks.search.choose.pick import Pick, pick
from tasks.search.choose.rules import Question, WinnerRule

__all__ = ["Pick", "Question", "WinnerRule", "pick"]
