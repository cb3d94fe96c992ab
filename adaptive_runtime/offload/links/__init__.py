"""Links to other devices: one persistent connection to each, measured in use and probed when idle.

[Several devices](docs/links.md) explains it with examples.
"""

from adaptive_runtime.base.devices import DeviceAddress
from adaptive_runtime.offload.links.measures import LinkMeasures, MeasuredLink, ProbeBudget, SharedLink
from adaptive_runtime.offload.links.peer import Peer, PeerAnswer, PeerLostError, PeerTimes, RunWay
