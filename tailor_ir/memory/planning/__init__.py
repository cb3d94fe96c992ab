"""The steps that a runtime executes for a network, in order: fused nodes, and changes of layout.

The rules are ONNX Runtime's on a CPU with all graph optimisations, as observed in its optimised files and in its requests to
the allocator (`benchmarks/memory.py`); `Rules` switches off what another runtime does not do:

- a convolution takes up its BatchNorm, the addition of a residual (written over that residual) and an activation; it and an
  average pooling do the padding before them;
- convolutions and poolings work on channels in blocks, and so do activations after them; where a neighbour does not, the
  tensor is laid out anew; a convolution that reads channels that are no multiple of four, or whose groups fill no blocks,
  copies its patches;
- reshapes are views, and so are transposes that only move the channels; a matrix product does transposes and
  scales itself; what is transposed and then split is split first;
- linear maps work on rows (positions, channels); an activation is written over what it reads, if nobody reads that again;
- steps run depth first from the outputs, of several inputs the one that is defined last comes first; the file's own nodes
  are defined before those on blocks, these before what takes tensors out of blocks (in the runtime in an order that differs
  from session to session), and last are convolutions that took up an addition outside of blocks.
"""

from tailor_ir.memory.planning.planner import find_steps

__all__ = ["find_steps"]
