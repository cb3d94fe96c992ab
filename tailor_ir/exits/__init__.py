"""Exits: heads that answer in the place of the whole network, from what a part of it has computed."""

from tailor_ir.exits.adding import HEADS, add_exits
from tailor_ir.exits.fitting import PASSES, FirstExit, fit_exits
from tailor_ir.exits.parts import ExitPart, ExitParts

__all__ = ["HEADS", "PASSES", "ExitPart", "ExitParts", "FirstExit", "add_exits", "fit_exits"]
