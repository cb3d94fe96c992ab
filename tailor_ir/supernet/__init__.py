"""`compile` and `load`, and their result: the SuperNet."""

from tailor_ir.supernet.checking import ChannelOrder, Reference
from tailor_ir.supernet.compiling import compile, load
from tailor_ir.supernet.network import SuperNet
from tailor_ir.supernet.reading import Batching, batch_axes
