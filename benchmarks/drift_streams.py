"""Errors of methods on streams that drift, piece by piece, for `benchmarks.drift`: what is measured is not measured again."""

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import tailor_ir
from benchmarks.trained import Trained
from tasks.adaptation import AdaptationSettings, AdaptiveSubnet, GuardedSubnet
from tasks.adaptation.settings import STREAM_METHODS
from tasks.adaptation.streams import KnownImages, StreamMethod, held_out_images, make_player
from tasks.adaptation.streams.players import StreamPlayer, left_out
from tasks.base.artifacts import append_line, read_lines
from tasks.data import Dataset, Split, load_splits
from tasks.data.drift import LabelledImages, StreamBatch, stream
from tasks.data.settings import DriftSettings, StreamKind
from tasks.evaluation.subnets import EvaluationData, statistics_of

METHODS = STREAM_METHODS
ROUNDS: tuple[tuple[StreamMethod, ...], ...] = (
    ("source", "batchnorm", "tent", "roid", "guarded"),
    ("eata", "sar", "cotta"),
)
"""All seeds are played by the first methods before the others begin."""
STREAMS: dict[str, tuple[StreamKind, int]] = {
    "clean": ("clean", 64),
    "continual": ("continual", 64),
    "mixed": ("mixed", 64),
    "correlated": ("correlated", 64),
    "single": ("continual", 1),
    "gradual": ("gradual", 64),
    "returning": ("returning", 64),
    "shares": ("shares", 64),
}
"""Kind and batch size."""
ROWS_FILE = "streams.jsonl"


class Prepared(NamedTuple):
    """A SubNet, and the images that it is measured with."""

    source: AdaptiveSubnet
    images: LabelledImages
    known: KnownImages


def prepare(trained: Trained) -> Prepared:
    """The largest SubNet with its statistics; images of the test and the validation split."""
    net, splits = tailor_ir.load(trained.supernet), load_splits(trained.data)
    validation = EvaluationData(
        splits["validation"], splits["train"], recalibration_images=trained.predict.recalibration_images
    )
    source = AdaptiveSubnet.of(net, net.max_config, statistics_of(net, net.max_config, validation))
    return prepared(source, splits)


def prepared(source: AdaptiveSubnet, splits: dict[Split, Dataset]) -> Prepared:
    """Images of the test split; those of the validation split are known."""
    known = held_out_images(splits["validation"], (splits["validation"].settings.resolution,) * 2)
    return Prepared(source, LabelledImages.of(splits["test"]), known)


@dataclass(frozen=True)
class MeasuredNetwork:
    """A prepared SubNet with its name, the digest of its training, and what is the same for all its streams."""

    name: str
    digest: str
    ready: Prepared
    _fresh: dict[tuple[StreamMethod, int], StreamPlayer] = field(default_factory=dict)

    def player(self, method: StreamMethod, batch_size: int) -> StreamPlayer:
        """A method that begins at the source. What it learns of source images before a stream, it learns once."""
        key = method, batch_size
        if key not in self._fresh:
            source, known = self.ready.source, self.ready.known
            self._fresh[key] = make_player(method, source, known, AdaptationSettings(), batch_size)
        return copy.deepcopy(self._fresh[key])

    def guarded(self) -> GuardedSubnet:
        """The SubNet under guards as they come."""
        return GuardedSubnet(copy.deepcopy(self.ready.source), self.ready.known.anchor, self.ready.known.profile)

    def plays(self, method: StreamMethod) -> bool:
        """Whether the method means anything for the network."""
        return left_out(method, self.ready.source) is None


class StreamPieces(NamedTuple):
    """Which streams are played by which methods. images: of each corruption; single_images: in batches of one."""

    streams: Sequence[str]
    methods: Sequence[StreamMethod]
    seeds: int
    images: int
    single_images: int
    severity: int

    def settings(self, title: str, seed: int) -> DriftSettings:
        """Of a stream."""
        kind, batch_size = STREAMS[title]
        images = self.single_images if batch_size == 1 else self.images
        return DriftSettings(stream=kind, severity=self.severity, images=images, batch_size=batch_size, seed=seed)

    @property
    def pieces(self) -> Iterator[tuple[int, str, list[StreamMethod]]]:
        """Seed, stream and methods, in the order in which they are played."""
        for methods in ROUNDS:
            chosen = [method for method in methods if method in self.methods]
            for seed in range(self.seeds):
                yield from ((seed, title, chosen) for title in self.streams)


def stream_rows(
    networks: Sequence[MeasuredNetwork], plan: StreamPieces, folder: Path, is_over: Callable[[], bool]
) -> Iterator[dict[str, Any]]:
    """A row for each network, stream, seed and method: its error in points.

    Rows of earlier runs are in the folder. Where time is over, those are all: nothing more is played.
    """
    file = folder / ROWS_FILE
    known = {_key(row): row for row in read_lines(file)}
    for seed, title, methods in plan.pieces:
        settings = plan.settings(title, seed)
        batches: list[StreamBatch] = []
        for network in networks:
            for method in filter(network.plays, methods):
                row = _described(network, title, settings, method)
                if _key(row) not in known:
                    if is_over():
                        continue
                    batches = batches or list(stream(settings, network.ready.images))
                    row |= played(network.player(method, settings.batch_size), batches)
                    append_line(file, row)
                    print(row, flush=True)
                    known[_key(row)] = row
                yield known[_key(row)]


def played(player: StreamPlayer, batches: Sequence[StreamBatch]) -> dict[str, float]:
    """The error in points, and how long the method took."""
    start_s = time.perf_counter()
    right = torch.cat([player.answer(batch.x_BCHW).argmax(1) == batch.y_B for batch in batches])
    return {"error_points": 100 * (1 - float(np.mean(right.numpy()))), "seconds": time.perf_counter() - start_s}


def _described(network: MeasuredNetwork, title: str, settings: DriftSettings, method: StreamMethod) -> dict[str, Any]:
    return {
        "network": network.name,
        "digest": network.digest,
        "stream": title,
        "seed": settings.seed,
        "images": settings.images,
        "severity": settings.severity,
        "method": method,
    }


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("network", "digest", "stream", "seed", "images", "severity", "method"))
