"""Choosing: one SubNet of what a search found, by a rule; two SubNets laid side by side."""

from tasks.choose.pick import Pick, pick
from tasks.choose.rules import Question, WinnerRule

__all__ = ["Pick", "Question", "WinnerRule", "pick"]
