"""`stream.json`: one SubNet on a stream of images that drift, under each method."""

from typing import Any, ClassVar

from adaptive_runtime.base.weight_state import GuardEventKind
from tasks.base.schemas.results import Result
from tasks.base.schemas.stored import Config, Record

STREAM_FILE = "stream.json"


class StreamPhase(Record):
    """Consecutive images of a stream under one corruption, from `first` on. `name`: the corruption, clean, or mixed."""

    first: int
    images: int
    name: str


class StreamEvent(Record):
    """An event of a guard after `image` images; see `tasks.adaptation.GuardEvent`."""

    image: int
    kind: GuardEventKind
    reason: str


class StreamedMethod(Record):
    """Errors of one method [%]: of all images, of each window, of each phase. `side_file`: its last adapted state."""

    method: str
    error_percent: float
    window_error_percent: tuple[float, ...]
    phase_error_percent: tuple[float, ...]
    events: tuple[StreamEvent, ...]
    side_file: str | None
    images_per_s: float


class StreamedNetwork(Result):
    """A SubNet on a stream. `left_out`: methods that it cannot play, and why.
    `errors_percent`: of all images, by method. `settings`: `tasks.data.drift.DriftSettings`.
    """

    STAGE: ClassVar[str] = "stream"
    KIND: ClassVar[str] = "stream"

    title: str
    digest: str
    config: Config
    images: int
    window_images: int
    settings: dict[str, Any]
    phases: tuple[StreamPhase, ...]
    methods: tuple[StreamedMethod, ...]
    errors_percent: dict[str, float]
    left_out: dict[str, str]
