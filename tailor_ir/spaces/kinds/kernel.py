"""Kind `kernel_size`: the kernels of a block's convolutions; SubNets keep the centre."""

from tailor_ir.spaces.draft import Draft, NamedBlock
from tailor_ir.spaces.kinds.block import propose_sizes
from tailor_ir.spaces.kinds.record import Kind

SMALLEST_KERNEL = 3  # of the proposed ones


def _propose(draft: Draft, named: NamedBlock) -> None:
    if named.groups.kernels:
        groups = draft.same_size(named.groups.kernels)
        full = draft.axis_map.groups[groups[0]]
        legal = [size for size in range(1, full + 1) if draft.padded(groups, full - size)]
        propose_sizes(draft, KERNEL, named, groups, legal, range(SMALLEST_KERNEL, full + 1, 2), 1)


KERNEL = Kind(name="kernel_size", scope="block", phase=1, of_block=_propose)
