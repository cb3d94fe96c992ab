"""`compile` and `load`, and their result: the SuperNet."""

from tailor_ir.supernet.checking import Reference
from tailor_ir.supernet.compiling import compile, load
from tailor_ir.supernet.network import SuperNet
from tailor_ir.supernet.ordering import ChannelOrder

__all__ = ["ChannelOrder", "Reference", "SuperNet", "compile", "load"]
