"""Memory that is held: a later piece of the same kind takes over that of an earlier one, and nothing else uses it in between.

Some runtimes decide so before they run (onnxruntime's "memory reuse"); it saves requests and may cost bytes.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from solvers.schedules.workload import Interval, Workload


def held(load: Workload, order: Sequence[int], kinds: Mapping[int, Hashable]) -> list[Interval]:
    """The pieces of memory of an order. kinds: of buffers that may take over memory, and leave it to others of their kind.

    A buffer that is kept to the end takes over none. Of several pieces, the one that was freed last is taken.
    """
    found: list[Interval] = []
    free: dict[Hashable, list[int]] = {}  # kind -> positions of pieces in `found`
    for piece in sorted(load.intervals(order), key=lambda piece: piece.first):
        first = piece.buffers[0]
        own = free.setdefault(kinds[first], []) if first in kinds else None
        over = [at for at in own or () if found[at].last < piece.first and first not in load.kept]
        if over:
            at = max(over, key=lambda at: found[at].last)
            found[at] = replace(found[at], last=piece.last, buffers=found[at].buffers + piece.buffers)
        else:
            if own is not None:
                own.append(len(found))
            found.append(piece)
    return found


def live_bytes(pieces: Sequence[Interval], moments: int) -> list[int]:
    """Bytes in use at each moment."""
    changes = [0] * (moments + 1)
    for piece in pieces:
        changes[piece.first] += piece.bytes_
        changes[piece.last + 1] -= piece.bytes_
    found, now = [], 0
    for change in changes[:moments]:
        now += change
        found.append(now)
    return found
