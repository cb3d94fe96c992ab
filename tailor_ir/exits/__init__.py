"""Exits: heads that answer in place of the whole network, from the results of its first part."""

from tailor_ir.exits.adding import HEADS, add_exits
from tailor_ir.exits.heads import PASSES, FirstExit, fit_exits
from tailor_ir.exits.parts import ExitPart, ExitParts
