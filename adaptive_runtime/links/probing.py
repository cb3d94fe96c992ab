"""How often an idle link may be probed: at most a thousandth of its bandwidth, for three kinds of probes.

Pings tell the round trip. Trains of a few packets hint at another bandwidth, soon and cheaply. Blocks tell the bandwidth: from
time to time, and at once after a hint, for which one block is always saved. Each kind has savings of its own, which grow with
time and bandwidth.
"""

from typing import Literal

from adaptive_runtime.links.measures import FIRST_BYTES

ProbeKind = Literal["ping", "train", "block"]

SHARE = 1e-3
SHARES: dict[ProbeKind, float] = {"block": 0.5, "train": 0.35, "ping": 0.15}
"""Of what probes may take, the more important kind first."""
OVERHEAD_BYTES = 400
"""Of a probe's frame and of what TCP and IP add to it and to its acknowledgement, in one direction, at most."""
PACKET_SHARE = 1.06
"""Bytes on the link for each byte of a probe: headers of packets, and acknowledgements of the other direction."""
BLOCK_MS, TRAIN_MS = 20.0, 1.0
"""A block, and what comes behind the first packet of a train, is to occupy the link for so long."""
LEAST_BLOCK_BYTES, MOST_BLOCK_BYTES = 1 << 13, 1 << 18
LEAST_TRAIN_BYTES, MOST_TRAIN_BYTES = 1460, (1 << 13) - 1 - FIRST_BYTES
"""Behind the first packet."""
MOST_LONGER = 4
LEAST_PAUSE_S = 1.0
FIRST_DOUBT_S, LONGEST_DOUBT_S = 30.0, 960.0
"""After a hint that a block did not confirm, as shapers that let bursts pass make them; doubled each time."""


def block_bytes(mbps: float) -> int:
    """The size of a block for a bandwidth."""
    return int(min(max(mbps * BLOCK_MS * 125, LEAST_BLOCK_BYTES), MOST_BLOCK_BYTES))


def probe_bytes(kind: ProbeKind, mbps: float, longer: int = 1) -> int:
    """The size of a probe for a bandwidth. longer: how many times longer a train is than usual."""
    if kind == "train":
        return FIRST_BYTES + int(min(longer * max(mbps * TRAIN_MS * 125, LEAST_TRAIN_BYTES), MOST_TRAIN_BYTES))
    return block_bytes(mbps) if kind == "block" else 0


def cost_bytes(kind: ProbeKind, mbps: float, longer: int = 1) -> float:
    """What a probe takes of a link in each direction, headers included."""
    return OVERHEAD_BYTES + PACKET_SHARE * probe_bytes(kind, mbps, longer)


class ProbeBudget:
    """Savings for probes of one link. now_s: of a clock that does not go back."""

    def __init__(self, now_s: float) -> None:
        self._until_s = self._last_s = now_s
        self._saved: dict[ProbeKind, float] = dict.fromkeys(SHARES, 0.0)
        self._trusted_s, self._doubt_s = now_s, FIRST_DOUBT_S
        self.longer = 1
        """Of trains: as long as they have to be so that a burst does not carry all of one."""

    def due(self, now_s: float, mbps: float, *, changed: bool = False) -> ProbeKind | None:
        """The probe that is sent now, at a bandwidth of the slower direction; None: it is too early.

        changed: something hints at another bandwidth; then the block that is saved for that is sent.
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
        """What a block said after a hint."""
        if confirmed:
            self._doubt_s = FIRST_DOUBT_S
        else:
            self._trusted_s, self._doubt_s = now_s + self._doubt_s, min(2 * self._doubt_s, LONGEST_DOUBT_S)
            self.longer = min(2 * self.longer, MOST_LONGER)
