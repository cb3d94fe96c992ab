"""Kinds of variables, one record each. A new kind needs its record in a module here, an entry below, and a test."""

from tailor_ir.spaces.kinds.alternative import BLOCK
from tailor_ir.spaces.kinds.attention import HEADS, VALUES
from tailor_ir.spaces.kinds.depth import DEPTH
from tailor_ir.spaces.kinds.exit import EXIT
from tailor_ir.spaces.kinds.expansion import EXPANSION
from tailor_ir.spaces.kinds.kernel import KERNEL
from tailor_ir.spaces.kinds.record import Kind
from tailor_ir.spaces.kinds.resolution import RESOLUTION, SEQUENCE_LENGTH
from tailor_ir.spaces.kinds.width import GROWTH, WIDTH

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        RESOLUTION,
        SEQUENCE_LENGTH,
        DEPTH,
        WIDTH,
        GROWTH,
        EXPANSION,
        HEADS,
        VALUES,
        KERNEL,
        BLOCK,
        EXIT,
    )
}
"""The kinds by name, in the order in which they propose variables."""

__all__ = ["KINDS", "Kind"]
