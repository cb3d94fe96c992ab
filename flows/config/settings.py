"""Settings of a run beyond the stages' own: the space, evaluation on other processes, the first and the last stage.

The space in a config has nested names, bare kinds and ranges, which become selectors with their choices. The first
stage of two trains a backbone on data of its own before it is joined to a head. The last stage is a flat list of
commands: forms show a union of lists as types. Options that not every learning problem can do yet are refused before
anything is worked.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from profiling_agents.network.endpoint import is_loopback
from tailor_ir import OF_SEVERAL, asks_for_exits
from tasks.data import DataSettings
from tasks.data.problems import CLASSIFICATION, other_metric, problem_named
from tasks.data.samples import lacks_of
from tasks.evaluation.models import ModelSettings
from tasks.training.finetune.settings import PretrainingSettings


class Asking(NamedTuple):
    """An option, and whether a config asks by it for an ability of `tasks.data.problems.require`.

    allowed: what the option may be without the ability.
    """

    ability: str
    option: str
    allowed: str
    asked: Callable[[Any], bool]


def _has_backend(backend: str, config: Any) -> bool:
    return any(profile.backend == backend for profile in config.device.values())


def _has_format(form: str, config: Any) -> bool:
    return form in config.export.formats


ASKING = (
    Asking("timm", "baselines.siblings", "[]", lambda config: bool(config.baselines.siblings)),
    Asking("backbone", "model.backbone", "null", lambda config: config.model.backbone is not None),
    Asking("mixing", "base.mixing", "mixup_alpha and cutmix_alpha 0", lambda config: config.base.mixing.is_on),
    Asking("mixing", "finetune.mixing", "mixup_alpha and cutmix_alpha 0", lambda config: config.finetune.mixing.is_on),
    Asking("exits", "space.exits", "a space without exits", lambda config: asks_for_exits(config.space)),
    Asking("streams", "stream.in_report", "false", lambda config: config.stream.in_report),
    Asking("adaptable", "export.adaptable", "false", lambda config: config.export.adaptable),
    Asking("blocks", "export.blocks", "false", lambda config: config.export.blocks),
    Asking("placed", "export.offload", "false", lambda config: config.export.offload),
    Asking("planned_memory", "export.planned_memory", "false", lambda config: config.export.planned_memory),
    Asking("placement", "partition.devices", "[], and no links", lambda config: config.partition.asked),
    Asking("executorch", "export.formats", "all but executorch", lambda config: "executorch" in config.export.formats),
    *(
        Asking(one, f"device with backend={one}", "onnxruntime, openvino, torch", partial(_has_backend, one))
        for one in ("ncnn", "executorch")
    ),
    *(
        Asking(runtime, f"export.formats with {form}", "onnx, onnx_int8, torch", partial(_has_format, form))
        for form, runtime in (("ncnn", "ncnn"), ("ncnn_fp16", "ncnn"), ("executorch", "executorch"))
    ),
)
CALLED = {"image": "", "text": " of texts", "sample": " of several inputs"}
"""Learning problems by what a sample is called."""


def check_abilities(config: BaseModel, data: DataSettings) -> None:
    """ValueError for an option that needs an ability which the problem of the data, or their form of samples, lacks."""
    record = problem_named(data.problem, data.metric)
    judged = "" if other_metric(record) is None else f" by {record.score}"
    problem = data.problem + CALLED[data.sample] + judged
    lacks = {**record.lacks, **lacks_of(data)}
    for ability, option, allowed, asked in ASKING:
        section = re.split(r"\W", option)[0]
        if ability in lacks and section in type(config).model_fields and asked(config):
            raise ValueError(
                f"{option} with data.kind={data.kind}: {problem} cannot do it yet: {lacks[ability]}; allowed: {allowed}"
            )


ALLOWED = "null, a number of processes from 1 to 256, dask://HOST:PORT or dask+tls://HOST:PORT"
MOST_PROCESSES = 256
SCHEDULER = re.compile(r"(dask|dask\+tls)://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\]):([0-9]{1,5})")


class SchedulerAddress(NamedTuple):
    """The address at which a Dask scheduler listens. protocol: Dask's."""

    protocol: Literal["tcp", "tls"]
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.protocol}://{host}:{self.port}"


class EvaluateSettings(BaseModel):
    """The place in which SubNets are evaluated. No result depends on it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    workers: Annotated[str | None, BeforeValidator(lambda value: str(value) if type(value) is int else value)] = Field(
        None,
        description="null: in this process; 4: in so many processes of this machine, at most one for each core; "
        "dask://HOST:PORT or dask+tls://HOST:PORT: by the workers of a Dask scheduler",
    )
    threads: int = Field(1, ge=1, le=256, description="of each worker")
    insecure: bool = Field(
        False,
        description="true: dask:// beyond this machine, where whoever reaches the scheduler or the network can run code here",
    )

    @model_validator(mode="after")
    def _workers_are_known_and_safe(self) -> "EvaluateSettings":
        if self.workers is None or self.processes:
            return self
        found = self.scheduler
        if found is None:
            raise ValueError(f"workers={self.workers}; allowed: {ALLOWED}")
        if found.protocol == "tcp" and not is_loopback(found.host) and not self.insecure:
            raise ValueError(
                f"workers={self.workers}: Dask runs what it is sent, and without TLS it asks nobody for a password; allowed: "
                "dask+tls://, or insecure=true in a network whose every machine you trust"
            )
        return self

    @property
    def processes(self) -> int:
        """Worker processes on this machine; 0: none."""
        count = int(self.workers) if self.workers and re.fullmatch(r"[0-9]{1,3}", self.workers) else 0
        return count if count <= MOST_PROCESSES else 0

    @property
    def scheduler(self) -> SchedulerAddress | None:
        """The scheduler that somebody else has started."""
        found = SCHEDULER.fullmatch(self.workers or "")
        if found is None or not 0 < int(found[3]) < 2**16:
            return None
        return SchedulerAddress("tls" if found[1].endswith("tls") else "tcp", found[2].strip("[]"), int(found[3]))


RANGE = ("from", "to", "step")
MOST_CHOICES = 1000
SpaceWord = Literal["auto", "frozen", "convolution", "light"]
"""The last two words are kinds of the heads of exits (`exits.head`)."""
WORDS = get_args(SpaceWord)


def _selectors(space: Any) -> Any:
    """Nested names joined with dots; a bare kind ("depth") stands for all variables of it ("*.depth").

    {from: 128, to: 224, step: 4} in the place of a list is 128, 132, …, 224.
    """
    if not isinstance(space, Mapping):
        return space
    selectors: dict[str, Any] = {}
    for name, choices in _leaves(space, ""):
        selector = f"*.{name}" if name in OF_SEVERAL else name
        if isinstance(choices, str) and choices not in WORDS:
            allowed = "convolution, light" if name == "exits.head" else "auto, frozen, or a list [a,b,…]"
            raise ValueError(f"{name}={choices}; allowed: {allowed}")
        selectors.pop(selector, None)  # the last mention also determines the order
        selectors[selector] = choices
    return selectors


def _leaves(space: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in space.items():
        if not isinstance(value, Mapping):
            yield f"{prefix}{key}", value
        elif any(word in value for word in RANGE):
            yield f"{prefix}{key}", _range(f"{prefix}{key}", value)
        else:
            yield from _leaves(value, f"{prefix}{key}.")


def _range(name: str, bounds: Mapping[Any, Any]) -> tuple[int | float, ...]:
    """Choices in equal steps, both ends included."""
    given = f"{name}={dict(bounds)}"
    if set(bounds) != set(RANGE) or not all(type(bounds[word]) in (int, float) for word in RANGE):
        raise ValueError(f"{given}; allowed: {{from: NUMBER, to: NUMBER, step: NUMBER}}")
    first, last, step = (Decimal(str(bounds[word])) for word in RANGE)
    if not all(number.is_finite() for number in (first, last, step)) or step <= 0 or last < first:
        raise ValueError(f"{given}; allowed: finite numbers, to not below from, step above 0")
    if (last - first) % step:
        raise ValueError(f"{given}: steps of {step} from {first} do not meet {last}; choose a step that does")
    if (last - first) / step >= MOST_CHOICES:
        raise ValueError(f"{given}: more than {MOST_CHOICES} choices; take a larger step")
    choices = [first + index * step for index in range(int((last - first) / step) + 1)]
    return tuple(int(choice) if choice == int(choice) else float(choice) for choice in choices)


SpaceSelectors = Annotated[dict[str, tuple[int | float | str, ...] | SpaceWord], BeforeValidator(_selectors)]


class PretrainingConfig(PretrainingSettings):
    """The settings of the first stage, with the space of the backbone by itself."""

    space: SpaceSelectors = Field(
        default={},
        description="of the backbone's SuperNet, where the selectors of the whole network do not suit it; empty: these",
    )

    def space_of(self, whole: dict[str, Any]) -> dict[str, Any]:
        """The space of the backbone's SuperNet. whole: that of the whole network."""
        return dict(self.space or whole)


def check_pretraining(first: PretrainingConfig, model: ModelSettings, data: DataSettings) -> None:
    """ValueError in one line: a network or data that have no two stages."""
    if first.backbone is None:
        return
    where = f"pretraining.backbone={first.backbone}"
    if model.kind != "callable":
        raise ValueError(
            f"{where} with model.kind={model.kind}, which has no parts by name; allowed: model=callable, or null"
        )
    if model.backbone is not None:
        raise ValueError(
            f"{where} with model.backbone={model.backbone}, which is a backbone alone; allowed: model.backbone=null"
        )
    if data.problem == CLASSIFICATION.name:
        raise ValueError(
            f"{where} with data.kind={data.kind}: a network that classifies whole images has no head for a second stage; "
            "allowed: data with boxes or masks, or pretraining.backbone=null"
        )
    given = first.data
    if given.problem != CLASSIFICATION.name or given.sample != "image":
        raise ValueError(
            f"pretraining.data.kind={given.kind}: {given.problem} of {given.sample}s; allowed: images with a class each, as "
            "glyphs or imagefolder"
        )
    if given.channels != data.channels:
        raise ValueError(
            f"pretraining.data.channels={given.channels} with data.channels={data.channels}: one backbone takes both; "
            "allowed: as many channels"
        )
    if asks_for_exits(first.space):
        raise ValueError("pretraining.space.exits: no exit of a backbone goes into the whole network; allowed: none")


RunStage = Literal[
    "compile", "finetune", "enumerate", "plan", "profile", "predict", "search", "stream", "export", "report"
]
RetargetStage = Literal["enumerate", "plan", "profile", "predict", "search", "export", "report"]
