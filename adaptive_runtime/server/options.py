"""The options of a service, from the command line."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from adaptive_runtime.base.devices import DeviceAddress
from adaptive_runtime.base.weight_options import WeightMethod
from adaptive_runtime.bundle.bundles import BundleFormat
from profiling_agents.messages import ActivationCoding
from profiling_agents.network.endpoint import Endpoint
from profiling_agents.sensing.sensors import SYSTEM

TOKEN_VARIABLE = "AUTOTAILOR_SERVICE_TOKEN"
VERSION_DIGITS = 12
"""Digits of the served digest that form the version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Options for serving a model.

    network: its address is bound with `tcp`. socket: path of the Unix socket for programs on this device; None: without. queue:
    requests that may wait; workers: requests that run at once. deadline_ms: of requests that name none. load_trace: file for
    the load and the requests; None: not recorded. niceness: of the service relative to other programs; None: unchanged.
    """

    network: Endpoint
    tcp: bool = True
    socket: Path | None = None
    model_name: str = "model"
    queue: int = 64
    workers: int = 1
    deadline_ms: float = 1000.0
    max_body_mib: int = 8
    load_trace: Path | None = None
    niceness: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleOptions:
    """Options for serving a bundle.

    budget_ms, memory_mib, format, key_file, cache: as in `adaptive_runtime.load`. also: folder of a search on this device,
    whose SubNets join when they are found. state: folder for the choice, adapted weights, and crashes; None: they are not
    remembered. adapts: the serving variant follows the load; policy: it also follows these rules; decisions: file of the record
    of decisions, which can be replayed. weights: method by which weights follow the served images; unaligned: images are not
    aligned. sensors_root: folder that contains the device's /sys and /proc. hit_rate: the hit rate of the caches is sensed,
    too. devices: that may run segments of SubNets, by the names in the bundle's plans.
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
    """Options for serving a SubNet over several devices.

    folder: with `segments.json` and `plans.json`. devices: besides the coordinator. coding: of tensors on links. sensors_root:
    folder that contains the coordinator's /sys and /proc. hit_rate: the hit rate of the coordinator's caches is sensed, too.
    """

    folder: Path
    devices: Mapping[str, DeviceAddress]
    coding: ActivationCoding = "fp32"
    sensors_root: Path = SYSTEM
    hit_rate: bool = False
