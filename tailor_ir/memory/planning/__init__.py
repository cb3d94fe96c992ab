"""The steps that a runtime executes for a network, in order: fused nodes, and changes of layout.

The rules are ONNX Runtime's on a CPU with all graph optimisations, as observed in its optimised files and in its requests to
the allocator (`benchmarks/memory.py`); `Rules` switches off the rules that another runtime does not follow:

- a convolution absorbs its BatchNorm, the addition of a residual (written over that residual) and an activation; a convolution
  or average pooling does the padding before it;
- convolutions and poolings work on channels in blocks, and so do activations after them; if a neighbour does not, the tensor is
  converted; a convolution copies its patches if it reads channels that are no multiple of four, or if its groups fill no
  blocks;
- reshapes are views, and so are transposes that only move the channels; a matrix product does transposes and scales itself; a
  transpose before a split is moved behind the split;
- linear maps work on rows (positions, channels); an activation overwrites its input if nothing else reads it later;
- steps run depth first from the outputs; among several inputs, the one defined last comes first; the file's own nodes are
  defined before those on blocks, then come conversions out of blocks (in the runtime in an order that differs from session to
  session), and last convolutions that absorbed an addition outside of blocks.
"""

from tailor_ir.memory.planning.planner import find_steps

__all__ = ["find_steps"]
