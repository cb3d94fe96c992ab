"""JSON types of answers about look-up tables."""

from typing import TypedDict

from tasks.measuring.lut.entry import DeviceIdentity, ProfilingMethod


class Failure(TypedDict):
    """An operator without a time, and the reason."""

    operator: str
    digest: str
    reason: str | None


class DescribedDevice(DeviceIdentity):
    """A device with a description of its runtime and processor for people."""

    description: str


class LutSummary(TypedDict):
    """A table in numbers. `methods`, `operators`: entries by method and by type, most first.

    `implementations`: number of operators by chosen implementation, without the runtime's own choice.
    """

    device: DescribedDevice
    entries: int
    ok: int
    fused: int
    failed: int
    noisy: int
    with_energy: int
    median_spread: float | None
    methods: dict[str, int]
    implementations: dict[str, int]
    operators: dict[str, int]
    failures: list[Failure]


class EntryCounts(TypedDict):
    """Numbers of entries. `median_spread`: over successful entries; None if there are none."""

    entries: int
    ok: int
    failed: int
    noisy: int
    with_energy: int
    median_spread: float | None


class TableListing(DescribedDevice, EntryCounts):
    """One device and method in a store. `oldest`, `newest`: UTC, ISO 8601. `invalid`: a message for each invalid entry."""

    device: str
    method: ProfilingMethod
    batches: list[int]
    settings: int
    oldest: str
    newest: str
    cost_s: float
    operators: dict[str, EntryCounts]
    invalid: list[str]
    failures: list[Failure]


class Extreme(TypedDict):
    """The operator whose latencies on two devices differ most. `p50_ms`: on both devices."""

    ratio: float
    operator: str
    digest: str
    input_shapes: list[list[int]] | None
    method: ProfilingMethod
    p50_ms: list[float]


class Ratios(TypedDict):
    """Latencies on the second device relative to the first, over `shared` operators."""

    shared: int
    median_ratio: float
    lowest_ratio: float
    highest_ratio: float
    worst: Extreme


class TableDifference(TypedDict):
    """Two tables. `operators`: ratios by type. `only_…`, `failed_…`: numbers of operators by type, on one device alone."""

    devices: list[str]
    all: Ratios
    operators: dict[str, Ratios]
    only_first: dict[str, int]
    only_second: dict[str, int]
    failed_first: dict[str, int]
    failed_second: dict[str, int]
