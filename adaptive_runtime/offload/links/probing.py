"""Budget for probes of an idle link: at most a thousandth of its bandwidth, for three kinds of probes.

Pings measure the round trip. Trains of a few packets hint at a changed bandwidth, soon and cheaply. Blocks measure the
bandwidth: from time to time, and at once after a hint, for which one block is always saved. Each kind has its own savings,
which grow with time and bandwidth.
"""

from typing import Literal

from adaptive_runtime.offload.links.measures import FIRST_BYTES

ProbeKind = Literal["ping", "train", "block"]

SHARE = 1e-3
SHARES: dict[ProbeKind, float] = {"block": 0.5, "train": 0.35, "ping": 0.15}
"""Shares of the budget, the more important kind first."""
OVERHEAD_BYTES = 400
"""Upper limit for a probe's frame, the TCP and IP headers, and its acknowledgement, in one direction."""
PACKET_SHARE = 1.06
"""Bytes on the link for each byte of a probe: headers of packets, and acknowledgements of the other direction."""
BLOCK_MS, TRAIN_MS = 20.0, 1.0
"""Time that a block, or a train behind its first packet, should occupy the link."""
LEAST_BLOCK_BYTES, MOST_BLOCK_BYTES = 1 << 13, 1 << 18
LEAST_TRAIN_BYTES, MOST_TRAIN_BYTES = 1460, (1 << 13) - 1 - FIRST_BYTES
"""Size behind the first packet."""
MOST_LONGER = 4
LEAST_PAUSE_S = 1.0
FIRST_DOUBT_S, LONGEST_DOUBT_S = 30.0, 960.0
"""Time during which hints are ignored after one that a block did not confirm; doubled each time.

Shapers that let bursts pass cause such hints.
"""


def block_bytes(mbps: float) -> int:
    """The size of a block for a bandwidth."""
    return int(min(max(mbps * BLOCK_MS * 125, LEAST_BLOCK_BYTES), MOST_BLOCK_BYTES))


def probe_bytes(kind: ProbeKind, mbps: float, longer: int = 1) -> int:
    """The size of a probe for a bandwidth. longer: factor on the usual length of a train."""
    if kind == "train":
        return FIRST_BYTES + int(min(longer * max(mbps * TRAIN_MS * 125, LEAST_TRAIN_BYTES), MOST_TRAIN_BYTES))
    return block_bytes(mbps) if kind == "block" else 0


def cost_bytes(kind: ProbeKind, mbps: float, longer: int = 1) -> float:
    """Bytes that a probe takes in each direction of the link, headers included."""
    return OVERHEAD_BYTES + PACKET_SHARE * probe_bytes(kind, mbps, longer)


class ProbeBudget:
    """Savings for probes of one link. now_s: of a monotonic clock."""

    def __init__(self, now_s: float) -> None:
        self._until_s = self._last_s = now_s
        self._saved: dict[ProbeKind, float] = dict.fromkeys(SHARES, 0.0)
        self._trusted_s, self._doubt_s = now_s, FIRST_DOUBT_S
        self.longer = 1
        """Factor on the length of trains, raised until a burst does not carry a whole train."""

    def due(self, now_s: float, mbps: float, *, changed: bool = False) -> ProbeKind | None:
        """The probe to send now, for the bandwidth of the slower direction; None: it is too early.

        changed: a measurement hints at another bandwidth; the block that is saved for this case is sent.
        """
        rate = SHARE * mbps * 125e3 * (now_s - self._until_s)
        self._until_s = now_s
        for kind, share in SHARES.items():
            most = cost_bytes(kind, mbps, self.longer) * (2 if kind == "block" else 1)
            self._saved[kind] = min(self._saved[kind] + share * rate, most)
        if now_s - self._last_s < LEAST_PAUSE_S:
            return None
        for kind in SHARES:
            cost = cost_bytes(kind, mbps, self.longer)
            spare = cost if kind == "block" and not (changed and now_s >= self._trusted_s) else 0.0
            if self._saved[kind] >= cost + spare:
                self._saved[kind] -= cost
                self._last_s = now_s
                return kind
        return None

    def answered(self, now_s: float, *, confirmed: bool) -> None:
        """Report whether a block confirmed the hint before it."""
        if confirmed:
            self._doubt_s = FIRST_DOUBT_S
        else:
            self._trusted_s, self._doubt_s = now_s + self._doubt_s, min(2 * self._doubt_s, LONGEST_DOUBT_S)
            self.longer = min(2 * self.longer, MOST_LONGER)
