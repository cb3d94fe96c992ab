"""The stage `stream`: one SubNet plays a stream under each method; its answers are judged window by window.

After each method its errors, its events and its side file are on disk; a killed stage resumes with the next method.

Legend: N images of the stream, B batch.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

import tailor_ir
from tailor_ir import Config, SuperNet
from tasks.adaptation import AdaptationSettings, AdaptiveSubnet, save_adapted
from tasks.adaptation.settings import StreamSettings
from tasks.adaptation.streams.players import (
    KnownImages,
    StreamMethod,
    StreamPlayer,
    held_out_images,
    left_out,
    make_player,
    require_images,
)
from tasks.base.artifacts import append_line, read_lines
from tasks.base.errors import UserError
from tasks.base.progress import Progress
from tasks.base.schemas.results import STREAM_FILE, StreamedMethod, StreamedNetwork, StreamEvent, StreamPhase
from tasks.base.schemas.stored import StageResult
from tasks.data import DataSettings, load_splits
from tasks.data.drift import CLEAN, LabelledImages, StreamBatch, StreamPlan, plan_stream, stream
from tasks.data.images import resize
from tasks.data.samples import Size
from tasks.data.settings import DriftSettings
from tasks.evaluation.subnets import EvaluationData, statistics_of

Right = NDArray[np.bool_]
MIXED = "mixed"


class Played:
    """Correctness of a player's answers so far."""

    def __init__(self, window_images: int) -> None:
        self._window_images = window_images
        self.right_N: Right = np.zeros(0, dtype=np.bool_)
        self.events: list[StreamEvent] = []
        self.seconds = 0.0

    @property
    def windows(self) -> tuple[float, ...]:
        """Error of each window [%]; the last one may be shorter."""
        firsts = range(0, len(self.right_N), self._window_images)
        return tuple(error_percent(self.right_N[first : first + self._window_images]) for first in firsts)

    def of_phases(self, phases: Sequence[StreamPhase]) -> tuple[float, ...]:
        """Error of each phase [%]."""
        return tuple(error_percent(self.right_N[one.first : one.first + one.images]) for one in phases)


def error_percent(right_N: Right) -> float:
    """Share of wrong answers [%]."""
    return 100 * (1 - float(right_N.mean()))


def play(
    player: StreamPlayer,
    batches: Iterable[StreamBatch],
    size: Size,
    window_images: int,
    after: Callable[[Played, int], None],
) -> Played:
    """Play all batches, at (height, width). `after` is called after each batch with the state and the number of its images."""
    played = Played(window_images)
    for batch in batches:
        started = time.perf_counter()
        logits_BK = player.answer(resize(batch.x_BCHW, size))
        played.seconds += time.perf_counter() - started
        played.right_N = np.concatenate([played.right_N, (logits_BK.argmax(1) == batch.y_B).numpy()])
        played.events += [StreamEvent(image=one.image, kind=one.kind, reason=one.reason) for one in player.new_events()]
        after(played, len(batch.y_B))
    return played


def phases_of(plan: StreamPlan, drift: DriftSettings) -> tuple[StreamPhase, ...]:
    """Runs of one corruption; a mixed stream is one phase."""
    if drift.stream == MIXED:
        return (StreamPhase(first=0, images=len(plan.image), name=MIXED),)
    names = np.where(plan.severity == CLEAN, len(drift.corruptions), plan.corruption)
    edges = [0, *(np.flatnonzero(np.diff(names)) + 1).tolist(), len(names)]
    titles = (*drift.corruptions, "clean")
    return tuple(
        StreamPhase(first=first, images=end - first, name=titles[names[first]]) for first, end in pairwise(edges)
    )


METHODS_FILE = "methods.jsonl"
WINDOWS_FILE = "windows.parquet"
ADAPTED_FOLDER = "adapted"
"""Folder of side files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubnetOfStream:
    """The SubNet that plays a stream. supernet: folder of its SuperNet. data: from which its images come. title: its name.

    config: None: the largest SubNet. recalibration_images: number of training images for its BatchNorm statistics; None: it has
    the SuperNet's own.
    """

    supernet: Path
    data: DataSettings
    title: str
    config: Mapping[str, Any] | None = None
    recalibration_images: int | None = None


class _Subnet:
    """A SubNet for playing: its origin, its source with known images, and the images of the stream."""

    def __init__(self, asked: SubnetOfStream) -> None:
        self.title = asked.title
        self.net: SuperNet = tailor_ir.load(asked.supernet)
        self.config: Config = self.net.space.canonical(dict(asked.config or self.net.max_config))
        self.size = self.net.input_size(self.config)
        splits = load_splits(asked.data)
        require_images(splits["test"])
        statistics, images = None, asked.recalibration_images
        if images is not None:
            known = EvaluationData(splits["validation"], splits["train"], recalibration_images=images)
            statistics = statistics_of(self.net, self.config, known)
        self.network = self.net.build(self.config, statistics)
        self.images = LabelledImages.of(splits["test"])
        self.known: KnownImages = held_out_images(splits["validation"], self.size)
        self.source, self.reason = self._adaptive()

    def _adaptive(self) -> tuple[AdaptiveSubnet | None, str]:
        """The SubNet in adaptive form; or None, and the reason why it cannot adapt."""
        try:
            return AdaptiveSubnet(self.network), ""
        except UserError as error:
            return None, str(error).removeprefix("adaptation: ")

    def left_out(self, method: StreamMethod) -> str | None:
        """The reason why the SubNet cannot play a method; None if it can."""
        if self.source is None:
            return None if method == "source" else self.reason
        return left_out(method, self.source)

    def player(self, method: StreamMethod, settings: AdaptationSettings, batch_size: int) -> StreamPlayer:
        """A player for one of its possible methods."""
        if self.source is None:
            return StreamPlayer.of_source(self.network)
        return make_player(method, self.source, self.known, settings, batch_size)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Playing:
    """A SubNet and the stream that it plays under each method. window_images: number of images of an error. out: for files."""

    subnet: _Subnet
    drift: DriftSettings
    phases: tuple[StreamPhase, ...]
    window_images: int
    out: Path
    progress: Progress

    @property
    def images(self) -> int:
        """The number of images of the stream."""
        return sum(phase.images for phase in self.phases)


def run(
    settings: StreamSettings,
    adaptation: AdaptationSettings,
    drift: DriftSettings,
    asked: SubnetOfStream,
    out: Path,
    progress: Progress,
) -> StageResult:
    """Play the stream under each method."""
    subnet = _Subnet(asked)
    phases = phases_of(plan_stream(drift, subnet.images.label_M), drift)
    playing = _Playing(
        subnet=subnet, drift=drift, phases=phases, window_images=settings.window_images, out=out, progress=progress
    )
    (out / ADAPTED_FOLDER).mkdir(exist_ok=True)
    reasons = {method: why for method in settings.methods if (why := subnet.left_out(method)) is not None}
    if reasons:
        progress.say(f"left out: {_grouped(reasons)}")
    known = {line["method"]: StreamedMethod.model_validate(line) for line in read_lines(out / METHODS_FILE)}
    for method in settings.methods:
        if method not in known and method not in reasons:
            player = subnet.player(method, adaptation, drift.batch_size)
            known[method] = _streamed(playing, method, player)
            append_line(out / METHODS_FILE, known[method].to_json())
    found = _found(playing, [known[method] for method in settings.methods if method in known], reasons)
    write_windows(found, out / WINDOWS_FILE)
    return found.write(out / STREAM_FILE)


def _found(
    playing: _Playing, methods: Sequence[StreamedMethod], reasons: Mapping[StreamMethod, str]
) -> StreamedNetwork:
    """The result of all methods. reasons: of those that are left out."""
    subnet = playing.subnet
    return StreamedNetwork(
        title=subnet.title,
        digest=subnet.net.space.digest(subnet.config),
        config=subnet.config,
        images=playing.images,
        window_images=playing.window_images,
        settings=playing.drift.model_dump(mode="json"),
        phases=playing.phases,
        methods=tuple(methods),
        errors_percent={one.method: one.error_percent for one in methods},
        left_out={**reasons},
    )


def _streamed(playing: _Playing, method: StreamMethod, player: StreamPlayer) -> StreamedMethod:
    """Play the stream under one method, and write its side file."""
    played = _played(playing, method, player)
    return StreamedMethod(
        method=method,
        error_percent=error_percent(played.right_N),
        window_error_percent=played.windows,
        phase_error_percent=played.of_phases(playing.phases),
        events=tuple(played.events),
        side_file=_save(playing, method, player),
        images_per_s=playing.images / played.seconds,
    )


def _played(playing: _Playing, method: StreamMethod, player: StreamPlayer) -> Played:
    """Play the stream under one method, with its error so far on the bar and each window's as a metric."""
    subnet, window_images, progress = playing.subnet, playing.window_images, playing.progress
    total, described = playing.images, 0
    with progress.bar(method, total=total) as bar:

        def after(played: Played, images: int) -> None:
            nonlocal described
            bar.advance(images)
            last = f"; {played.events[-1].kind}" if played.events else ""
            bar.note(f"error {error_percent(played.right_N):.1f} %{last}")
            done = len(played.right_N)
            windows = played.windows if done == total else played.windows[: done // window_images]
            for number, error in enumerate(windows[described:], described):
                progress.metrics({f"window_error_percent.{method}": error}, min((number + 1) * window_images, total))
            described = len(windows)

        return play(player, stream(playing.drift, subnet.images), subnet.size, window_images, after)


def _save(playing: _Playing, method: StreamMethod, player: StreamPlayer) -> str | None:
    """Write the side file of the final adapted state; None if the source answers."""
    adapted = player.adapted()
    if adapted is None:
        return None
    name = f"{ADAPTED_FOLDER}/{method}.safetensors"
    save_adapted(playing.out / name, adapted, playing.subnet.net, playing.subnet.config)
    return name


def _grouped(reasons: Mapping[StreamMethod, str]) -> str:
    """One line that groups methods with the same reason."""
    by_reason: dict[str, list[str]] = {}
    for method, reason in reasons.items():
        by_reason.setdefault(reason, []).append(method)
    return "; ".join(f"{', '.join(methods)}: {reason}" for reason, methods in by_reason.items())


def write_windows(found: StreamedNetwork, file: Path) -> None:
    """Write a row for each window of each method: its first image, the number of its images, its error [%]."""
    rows = [
        {
            "method": one.method,
            "window": number,
            "first_image": number * found.window_images,
            "images": min(found.window_images, found.images - number * found.window_images),
            "error_percent": error,
        }
        for one in found.methods
        for number, error in enumerate(one.window_error_percent)
    ]
    parquet.write_table(pa.Table.from_pylist(rows), file)
