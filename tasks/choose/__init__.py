"""Choosing: one SubNet of a finished search by a rule, or two SubNets side by side."""

from tasks.choose.pick import Pick, pick
from tasks.choose.rules import Question, WinnerRule

__all__ = ["Pick", "Question", "WinnerRule", "pick"]
