"""How often an idle link may be probed: at most a thousandth of its bandwidth, for two kinds of probes.

Pings tell the round trip, blocks the bandwidth. Both have savings of their own, which grow with time and bandwidth.
"""

from typing import Literal

ProbeKind = Literal["ping", "block"]

SHARE = 1e-3
SHARES: dict[ProbeKind, float] = {"block": 0.75, "ping": 0.25}
"""Of what probes may take, the more important kind first."""
OVERHEAD_BYTES = 400
"""Of a probe's frame and of what TCP and IP add to it and to its acknowledgement, in one direction, at most."""
PACKET_SHARE = 1.06
"""Bytes on the link for each byte of a block: headers of packets, and acknowledgements of the other direction."""
BLOCK_MS = 20.0
"""A block is to occupy the link for so long."""
LEAST_BLOCK_BYTES, MOST_BLOCK_BYTES = 1 << 14, 1 << 18
LEAST_PAUSE_S = 1.0


def block_bytes(mbps: float) -> int:
    """The size of a block for a bandwidth."""
    return int(min(max(mbps * BLOCK_MS * 125, LEAST_BLOCK_BYTES), MOST_BLOCK_BYTES))


def cost_bytes(kind: ProbeKind, mbps: float) -> float:
    """What a probe takes of a link in each direction, headers included."""
    return OVERHEAD_BYTES + (PACKET_SHARE * block_bytes(mbps) if kind == "block" else 0.0)


class ProbeBudget:
    """Savings for probes of one link. now_s: of a clock that does not go back."""

    def __init__(self, now_s: float) -> None:
        self._until_s = self._last_s = now_s
        self._saved: dict[ProbeKind, float] = {"ping": 0.0, "block": 0.0}

    def due(self, now_s: float, mbps: float) -> ProbeKind | None:
        """The probe that is sent now, at a bandwidth of the slower direction; None: it is too early."""
        rate = SHARE * mbps * 125e3 * (now_s - self._until_s)
        self._until_s = now_s
        for kind, share in SHARES.items():
            self._saved[kind] = min(self._saved[kind] + share * rate, cost_bytes(kind, mbps))
        if now_s - self._last_s < LEAST_PAUSE_S:
            return None
        for kind in SHARES:
            if self._saved[kind] >= cost_bytes(kind, mbps):
                self._saved[kind] = 0.0
                self._last_s = now_s
                return kind
        return None
