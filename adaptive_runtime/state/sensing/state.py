"""One sample of the device's state, as a message, and the load index that follows from it.

A value that the device lacks or did not report is None. The load index (AdaScale, eq. 2) is a weighted mean of the use
of CPU, GPU and memory.
"""

from typing import Literal

from adaptive_runtime.base.numbers import NotNegative, Share, clipped_share
from profiling_agents.messages import Message

HitRateSource = Literal["counters", "probe", "learned"]


class Pressure(Message):
    """Pressure stall information of one resource: the time in which at least one task of the system waited for it.

    avg10: share of the last ten seconds. total_s: since the system started. since_last: share of the time since the previous
    sample, None in the first sample.
    """

    avg10: Share
    total_s: NotNegative
    since_last: Share | None = None


class SensorFault(Message):
    """A sensor without values in this sample: it has not answered yet, or it failed. `line`: message for the user."""

    sensor: str
    kind: Literal["stalled", "failed"]
    line: str


class SensedState(Message):
    """The device at one moment.

    at_s: monotonic clock, for all arithmetic with time. wall_s: seconds since 1970, for people; it may jump.
    usable_cpus: CPUs that this process may use, no more than its control group's quota.
    cpu_use: of the whole machine since the previous sample; time that a hypervisor took away counts as used. cpu_use_others:
    the same without this process. cpu_stolen: share that the hypervisor took away. runnable: tasks that run or wait for a CPU.
    group_cpu_use: of the control group's quota. group_throttled: share of the periods in which the quota was used up.
    memory_*: within the control group's limit. frequency_mhz: mean of the usable CPUs. temperature_c: the hottest sensor.
    battery: charge. plugged: whether the device has a power supply. gpu_use, gpu_memory_use: the busiest GPU.
    hit_rate: of the processor's caches; hit_rate_by: its source.
    """

    at_s: float
    wall_s: float
    usable_cpus: NotNegative | None = None
    cpu_use: Share | None = None
    cpu_use_others: Share | None = None
    cpu_stolen: Share | None = None
    runnable: int | None = None
    group_cpu_use: NotNegative | None = None
    group_throttled: Share | None = None
    memory_total_mib: NotNegative | None = None
    memory_available_mib: NotNegative | None = None
    pressure_cpu: Pressure | None = None
    pressure_memory: Pressure | None = None
    pressure_io: Pressure | None = None
    frequency_mhz: NotNegative | None = None
    temperature_c: float | None = None
    throttled: bool | None = None
    battery: Share | None = None
    plugged: bool | None = None
    gpu_use: Share | None = None
    gpu_memory_use: Share | None = None
    hit_rate: Share | None = None
    hit_rate_by: HitRateSource | None = None
    faults: tuple[SensorFault, ...] = ()

    @property
    def memory_use(self) -> float | None:
        """Share of the memory that is not available."""
        if self.memory_available_mib is None or not self.memory_total_mib:
            return None
        return clipped_share(1.0 - self.memory_available_mib / self.memory_total_mib)


class LoadWeights(Message):
    """Weights of the parts."""

    cpu: NotNegative = 1.0
    gpu: NotNegative = 1.0
    memory: NotNegative = 1.0


def load_index(state: SensedState, weights: LoadWeights | None = None) -> float | None:
    """(W_cpu · U_cpu + W_gpu · U_gpu + W_m · U_m) / W, over the known parts; None if none is known."""
    weights = weights or LoadWeights()
    parts = [(weights.cpu, state.cpu_use), (weights.gpu, state.gpu_use), (weights.memory, state.memory_use)]
    known = [(weight, use) for weight, use in parts if use is not None]
    whole = sum(weight for weight, _ in known)
    return sum(weight / whole * use for weight, use in known) if whole > 0 else None
