"""Streams that drift: SubNets of the run and its network play one stream under each method."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.config import FlowConfig, RunConfig
from flows.pipeline import pages
from flows.pipeline.results import of
from flows.pipeline.stages.spec import Context, Scope, StageSpec
from flows.pipeline.stages.winners import chosen
from importing import later_names
from tasks.adaptation.settings import LARGEST, ORIGINAL, SMALLEST_BUDGET, title_of
from tasks.base.artifacts import key_settings
from tasks.base.errors import UserError
from tasks.base.progress import Progress
from tasks.base.schemas.results import STREAM_FILE, StreamedNetwork
from tasks.base.schemas.stored import Config, StageResult
from tasks.base.schemas.winners import FRONT_FILE, Front
from tasks.search.choose import pick, resolve

if TYPE_CHECKING:
    from tasks.adaptation.streams import stage
    from tasks.adaptation.streams.players import check_images
else:
    globals().update(later_names(__file__))

COMMAND = "stream"


def _labels(config: FlowConfig) -> dict[str, tuple[str, str | None]]:
    """Label -> the name of a SubNet, and the device whose search finds it; None if no search is needed."""
    assert isinstance(config, RunConfig), "streams are of the whole pipeline"
    found: dict[str, tuple[str, str | None]] = {}
    for name in config.stream.subnets:
        if name in config.stream.searched:
            found |= {f"{title_of(name)}-{device}": (name, device) for device in config.device}
        else:
            found[title_of(name)] = (name, None)
    return found


def unless_streams_need_none(spec: StageSpec) -> StageSpec:
    """The same stage, left out for the stream command if none of its SubNets comes from a search."""

    def wanted(config: FlowConfig, until: str) -> bool:
        needed = until != COMMAND or (isinstance(config, RunConfig) and bool(config.stream.searched))
        return needed and spec.wanted(config, until)

    return replace(spec, wanted=wanted)


def is_streamed(config: FlowConfig, until: str) -> bool:
    """Whether a command plays streams."""
    return isinstance(config, RunConfig) and (until == COMMAND or (until == "report" and config.stream.in_report))


def check_streams(config: FlowConfig, until: str) -> None:
    """UserError if a command plays streams with too few images; raised before anything is trained."""
    if is_streamed(config, until):
        assert isinstance(config, RunConfig), "streams are of the whole pipeline"
        check_images(config.data, config.drift)


def _is_original(at: Context) -> bool:
    return _labels(at.config)[at.label][0] == ORIGINAL


def _supernet(at: Context) -> Path:
    """The SuperNet to play; for the original network the one before fine-tuning, which still has the original weights."""
    return at.supernet if _is_original(at) else at.trained


def _recalibration_images(at: Context) -> int | None:
    """None for the original network, which keeps the BatchNorm statistics from its training."""
    return None if _is_original(at) else at.config.predict.recalibration_images


def _config(at: Context) -> Config | None:
    """The SubNet; None: the largest one. UserError if a search found no such SubNet."""
    name, device = _labels(at.config)[at.label]
    if name in (ORIGINAL, LARGEST):
        return None
    if device is None:
        subnet = pick(name).subnet
        assert subnet is not None, "a name without a search is a file"
        return subnet.config
    front = Front.read(chosen(at)[device].folder / FRONT_FILE)
    if name == SMALLEST_BUDGET:
        return min(front.winners, key=lambda row: row.budget_ms).config
    asked = pick(name)
    budgets_ms = [row.budget_ms for row in front.winners]
    if asked.kind == "budget" and asked.budget_ms not in budgets_ms:
        raise UserError(
            f"stream.subnets: '{name}'",
            f"is no budget of the search on '{device}'",
            allowed=", ".join(f"{budget_ms:g}ms" for budget_ms in budgets_ms),
            next_step=f"search it: search.budgets_ms=[{asked.budget_ms:g}]",
        )
    return resolve(asked, front, [*front.winners, front.fastest, front.largest], device).config


def _settings(at: Context) -> dict[str, Any]:
    config = at.training
    return {
        **key_settings(config.stream),
        "subnet": _config(at),
        "drift": key_settings(config.drift),
        "adaptation": key_settings(config.adaptation),
        "recalibration_images": _recalibration_images(at),
    }


def _stream(at: Context, out: Path, progress: Progress) -> StageResult:
    config = at.training
    subnet = stage.SubnetOfStream(
        supernet=_supernet(at),
        data=config.data,
        title=at.label,
        config=_config(at),
        recalibration_images=_recalibration_images(at),
    )
    return stage.run(config.stream, config.adaptation, config.drift, subnet, out, progress)


STREAM = StageSpec(
    name="stream",
    body=_stream,
    scope=Scope(labels=lambda config: tuple(_labels(config))),
    needs=("compile", "finetune"),
    reads=("search", "refine"),
    modules=("tasks.adaptation.streams.stage",),
    settings=_settings,
    inputs=lambda at: (at.data, _supernet(at)),
    artifacts=lambda at: (STREAM_FILE, stage.WINDOWS_FILE, stage.ADAPTED_FOLDER),
    facts=of(StreamedNetwork, pages.streamed),
    details=of(StreamedNetwork, pages.events),
    wanted=is_streamed,
    ends=COMMAND,
)
"""Errors over time of a SubNet on a stream of drifting images, under each method."""
