"""`compile` and `load`, and what they make: the SuperNet."""

from tailor_ir.supernet.compiling import compile, load
from tailor_ir.supernet.network import SuperNet

__all__ = ["SuperNet", "compile", "load"]
