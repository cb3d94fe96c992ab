"""The options of a service, from the command line."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from adaptive_runtime.adapting_weights import WeightMethod
from adaptive_runtime.bundles import BundleFormat
from adaptive_runtime.links import DeviceAddress
from profiling_agents.messages import ActivationCoding
from profiling_agents.network.endpoint import Endpoint
from profiling_agents.sensing.sensors import SYSTEM

TOKEN_VARIABLE = "AUTOTAILOR_SERVICE_TOKEN"
VERSION_DIGITS = 12
"""Of the digest of what is served: its version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """How a model is served.

    queue: requests that may wait; workers: requests that run at once. deadline_ms: of requests that name none. socket: path of
    the socket for programs on this device; None: without. load_trace: file for the load and the requests; None: not recorded.
    niceness: of the service beside other programs; None: as it was started.
    """

    network: Endpoint
    model_name: str = "model"
    queue: int = 64
    workers: int = 1
    deadline_ms: float = 1000.0
    max_body_mib: int = 8
    socket: Path | None = None
    load_trace: Path | None = None
    niceness: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleOptions:
    """A bundle that is served.

    budget_ms, memory_mib, format, key_file, cache: as `adaptive_runtime.load` takes them. also: folder of a search on this
    device, whose SubNets join when they are found. state: folder in which the choice is kept, what weights have adapted, and
    what has crashed; None: it is forgotten. adapts: what serves changes with the load; policy: with it, too, by these rules;
    decisions: the file of what was decided, which can be replayed. weights: they follow the images that are served;
    unaligned: these stay as they come.
    sensors_root: where the device's /sys and /proc are. hit_rate: that of the caches is sensed, too. devices: that may run
    parts of SubNets, by the names of the bundle's plans.
    """

    bundle: Path
    budget_ms: float | None = None
    memory_mib: float | None = None
    format: BundleFormat | None = None
    key_file: Path | None = None
    cache: Path | None = None
    also: Path | None = None
    state: Path | None = None
    adapts: bool = False
    policy: str | None = None
    decisions: Path | None = None
    weights: WeightMethod | None = None
    unaligned: bool = False
    sensors_root: Path = SYSTEM
    hit_rate: bool = False
    devices: Mapping[str, DeviceAddress] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitServiceOptions:
    """A SubNet over several devices that is served. folder: with `segments.json` and `plans.json`. devices: besides home.

    coding: in which tensors cross links. sensors_root: where home's /sys and /proc are. hit_rate: that of home's caches is
    sensed, too.
    """

    folder: Path
    devices: Mapping[str, DeviceAddress]
    coding: ActivationCoding = "fp32"
    sensors_root: Path = SYSTEM
    hit_rate: bool = False
