"""Links to other devices: one persistent connection to each, measured in use and probed when idle.

[Several devices](docs/links.md) explains it with examples.
"""

from adaptive_runtime.links.addresses import DeviceAddress
from adaptive_runtime.links.measures import LinkMeasures, MeasuredLink
from adaptive_runtime.links.peer import Peer, PeerAnswer, PeerLostError, PeerTimes, RunWay
from adaptive_runtime.links.probing import ProbeBudget
from adaptive_runtime.links.shared import SharedLink
from adaptive_runtime.links.trace import BandwidthTrace, LinkRecorder

__all__ = [
    "BandwidthTrace",
    "DeviceAddress",
    "LinkMeasures",
    "LinkRecorder",
    "MeasuredLink",
    "Peer",
    "PeerAnswer",
    "PeerLostError",
    "PeerTimes",
    "ProbeBudget",
    "RunWay",
    "SharedLink",
]
