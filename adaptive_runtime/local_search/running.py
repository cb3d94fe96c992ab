"""A whole search on a device in this process: latencies, generations, and SubNets that a deployed model can serve.

A stopped search resumes from its folder.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path as FilePath
from typing import IO, Any

import numpy as np

from adaptive_runtime.base.arrays import FLOAT_BYTES, Values
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.process import resident_mib
from adaptive_runtime.bundle.bundles import (
    FOUND_FILE,
    BlocksManifest,
    BundledNet,
    BundledSubNet,
    FoundSubNets,
    OpenBundle,
    SubNetLatency,
    SubNetMemory,
)
from adaptive_runtime.bundle.bundles.manifest import HERE
from adaptive_runtime.local_search.evaluation import (
    LEAST_KEPT_MIB,
    EvaluatedPath,
    OwnEvaluation,
    OwnImages,
    PathScore,
    SearchState,
    SegmentLatencies,
    SegmentSessions,
    known_latencies,
    measured_ms,
    samples_ms,
    write_whole,
)
from adaptive_runtime.local_search.proposals import AdditiveModel, LocalSearchSettings, Proposer
from adaptive_runtime.local_search.space import SegmentPath, SegmentSpace, best_front, latency_ms
from adaptive_runtime.pool import SubNetPool, Variant
from profiling_agents.messages import MIB

NOISY_SPREAD = 0.25
CHUNK = 16


def found_subnets(
    bundle: OpenBundle,
    blocks: BlocksManifest,
    paths: Sequence[SegmentPath],
    accuracies: Mapping[SegmentPath, float],
    evaluation: OwnEvaluation,
    sessions: SegmentSessions,
    ms_E: Values,
) -> FoundSubNets:
    """SubNets by their paths, timed again as they are served, beside those of the bundle on the same images."""
    rows = []
    for path in paths:
        sessions.free()  # keep all segments of one SubNet in memory while it is timed
        rows.append(_row(blocks, path, accuracies[path], sessions, ms_E))
    sessions.free()
    return FoundSubNets(
        bundle=bundle.digest,
        images=len(evaluation.data),
        labels="largest" if evaluation.data.labels is None else "given",
        accuracies=_shipped(bundle, evaluation.data, evaluation.labels),
        subnets=tuple(rows),
    )


def _row(
    blocks: BlocksManifest, path: SegmentPath, accuracy: float, sessions: SegmentSessions, ms_E: Values
) -> BundledSubNet:
    segments = [blocks.segments[number] for number in path]
    config = blocks.config_of(path)
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]
    bytes_ = sum(one.bytes for one in segments)
    features = [int(np.prod([size or 1 for size in one.output.shape])) for one in segments]
    return BundledSubNet(
        digest=f"found-{digest}",
        config=config,
        input_shape=tuple(size or 1 for size in segments[0].input.shape),
        preparation=blocks.preparation,
        nets={
            "onnx": BundledNet(
                files=(*(one.file for one in segments), blocks.weights),
                input=segments[0].input,
                output=segments[-1].output,
                relative_difference=blocks.relative_difference,
            )
        },
        macs=sum(one.macs for one in segments),
        parameters=bytes_ // FLOAT_BYTES,
        accuracy={HERE: accuracy},
        latency=_latency(samples_ms(sessions, blocks, path)),
        predicted_ms=latency_ms(path, ms_E),
        memory=SubNetMemory(weights_mib=bytes_ / MIB, activations_mib=FLOAT_BYTES * 2 * max(features) / MIB),
    )


def _latency(times_ms: Sequence[float]) -> SubNetLatency:
    low_ms, middle_ms, high_ms = (float(one) for one in np.percentile(times_ms, (10, 50, 90)))
    spread = (high_ms - low_ms) / middle_ms
    noisy = spread > NOISY_SPREAD
    return SubNetLatency(p50_ms=middle_ms, p90_ms=high_ms, spread=spread, n=len(times_ms), noisy=noisy)


def _shipped(bundle: OpenBundle, data: OwnImages, labels_N: np.ndarray) -> dict[str, float]:
    """The accuracies of the bundle's own SubNets, with one at a time in memory."""
    pool = SubNetPool(bundle, ("onnx",), None, lambda line: None, prepares=False)
    found = {}
    for subnet in bundle.manifest.subnets:
        answerer = pool.answerer(Variant(subnet.digest))
        right = 0
        for start in range(0, len(data), CHUNK):
            x_NCHW = np.ascontiguousarray(data.images[start : start + CHUNK])
            right += int((answerer.answer(x_NCHW).answers == labels_N[start : start + CHUNK]).sum())
        found[subnet.digest] = right / len(data)
        pool.free(answerer)
    pool.close()
    return found


Tell = Callable[[dict[str, Any]], None]
"""Callback for progress: gets a JSON object with the name of an event."""
MEMORY_SHARE, LEAST_ROOM_MIB = 0.1, 4.0
"""Extra memory of a search beyond a process with the largest SubNet alone: a share of that process, or a minimum [MiB]."""
KEPT_SHARE = 0.25
"""Share of the extra memory for features."""
MOST_FOUND = 8


def search(
    bundle: OpenBundle, source: FilePath | IO[bytes], folder: FilePath, settings: LocalSearchSettings, tell: Tell
) -> FilePath:
    """Search with the user's images and write `found.json` into a folder. Returns its path. AdaptiveError in one line.

    The folder also holds the state of the search: latencies, paths and counts, but neither images nor labels.
    """
    blocks = bundle.blocks()
    classes = blocks.segments[blocks.largest[-1]].output.shape[-1] or 1
    shape = tuple(size or 1 for size in blocks.segments[blocks.largest[0]].input.shape[1:])
    data = OwnImages.read(source, shape, classes)
    _make(folder)
    latencies = known_latencies(bundle, blocks, folder)
    tell({"event": "latencies", "segments": len(blocks.segments), "took_s": latencies.took_s})
    _require_a_subnet(SegmentSpace.of(blocks), latencies, settings)
    running = _Running(bundle, blocks, data, latencies, folder, settings, tell)
    running.work()
    write_whole(folder / FOUND_FILE, running.found().to_json())
    tell({"event": "found", "file": str(folder / FOUND_FILE)})
    return folder / FOUND_FILE


def _make(folder: FilePath) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.disk_usage(folder)
    except OSError as error:
        raise AdaptiveError(str(folder), f"cannot be written ({error.strerror})") from error


def _require_a_subnet(space: SegmentSpace, latencies: SegmentLatencies, settings: LocalSearchSettings) -> None:
    ms = latencies.ms_E
    if not best_front(space, -ms, ms, settings.budget_ms):
        fastest_ms = min(latency_ms(path, ms) for path in best_front(space, -ms, ms, np.inf))
        got = f"{settings.budget_ms:g} ms, and the fastest SubNet takes {fastest_ms:.3g} ms here"
        raise AdaptiveError("budget", got, allowed=f"from {fastest_ms:.3g} ms on")


class _Running:
    def __init__(
        self,
        bundle: OpenBundle,
        blocks: BlocksManifest,
        data: OwnImages,
        latencies: SegmentLatencies,
        folder: FilePath,
        settings: LocalSearchSettings,
        tell: Tell,
    ) -> None:
        self.bundle, self.blocks, self.settings, self.tell, self.folder = bundle, blocks, settings, tell, folder
        self.ms, self.space = latencies.ms_E, SegmentSpace.of(blocks)
        self.sessions = SegmentSessions(bundle, blocks)
        kept_mib = self._limit_memory()
        self.evaluation = OwnEvaluation(self.sessions, blocks, data, self.ms, kept_mib)
        self.state = SearchState.open(folder, _key(bundle, settings, data, latencies))
        self.images = len(data)

    def _limit_memory(self) -> float:
        """Limit the process to a tenth more than with the largest SubNet alone. Returns the part for features [MiB]."""
        before_mib = resident_mib() or 0.0
        measured_ms(self.sessions, self.blocks, self.blocks.largest)
        largest_mib = self.sessions.peak_mib
        room_mib = max(MEMORY_SHARE * (before_mib + largest_mib), LEAST_ROOM_MIB)
        self.sessions.cap_mib = largest_mib + room_mib
        return max(LEAST_KEPT_MIB, KEPT_SHARE * room_mib)

    @property
    def known(self) -> dict[SegmentPath, PathScore]:
        """Scores of the evaluated SubNets."""
        return {one.path: one.score for one in self.state.evaluated}

    def work(self) -> None:
        """Run generations until the search ends; each is saved when it is complete."""
        if self.state.largest is None:
            self.state = self.state.model_copy(update={"largest": self._evaluated([self.blocks.largest])[0]})
        assert self.state.largest is not None
        self.proposer = self._proposer(self.state.largest.score)
        while not self._has_ended():
            paths = self.proposer.generation(self.state.generation, self.known)
            if not paths:
                break
            self._add(self._evaluated(paths))

    def found(self) -> Any:
        """The best SubNet, and those that no other one beats in both latency and accuracy."""
        known, model = self.known, self.proposer.model
        model.fit(known)
        accuracies = {path: score.accuracy for path, score in known.items()}
        likely = {path: model.combined(path, accuracy) for path, accuracy in accuracies.items()}
        paths: list[SegmentPath] = []
        for path in sorted(likely, key=lambda one: (-likely[one], latency_ms(one, self.ms))):
            own_ms = latency_ms(path, self.ms)
            within = own_ms <= self.settings.budget_ms
            if within and all(own_ms < latency_ms(other, self.ms) for other in paths):
                paths.append(path)
        return found_subnets(
            self.bundle, self.blocks, paths[:MOST_FOUND], accuracies, self.evaluation, self.sessions, self.ms
        )

    def _evaluated(self, paths: list[SegmentPath]) -> list[EvaluatedPath]:
        scores = self.evaluation.scores(paths)
        return [EvaluatedPath(path=path, **one._asdict()) for path, one in zip(paths, scores, strict=True)]

    def _proposer(self, largest: PathScore) -> Proposer:
        losses = [one.accuracy_loss for one in self.blocks.segments]
        losses_E = np.array([np.nan if one is None else one for one in losses])
        own_E = np.array([one.variable is None for one in self.blocks.segments])
        model = AdditiveModel(losses_E, own_E, largest, self.images)
        return Proposer(self.space, self.ms, model, self.settings)

    def _add(self, added: list[EvaluatedPath]) -> None:
        counts, before = self.evaluation.counts, self.state
        names = ("runs", "alone", "run_ms", "alone_ms")
        sums = {name: getattr(before, name) + getattr(counts, name) for name in names}
        for name in names:
            setattr(counts, name, type(getattr(counts, name))())
        described = {"evaluated": (*before.evaluated, *added), "generation": before.generation + 1}
        self.state = before.model_copy(update={**described, **sums})
        self.state.write(self.folder)
        best = self.proposer.best(self.known)
        self.tell(
            {
                "event": "generation",
                "number": self.state.generation,
                "of": self.settings.generations,
                "evaluated": len(self.state.evaluated),
                "accuracy": None if best is None else self.known[best].accuracy,
                "latency_ms": None if best is None else latency_ms(best, self.ms),
                "saved": 1 - self.state.run_ms / self.state.alone_ms if self.state.alone_ms else 0.0,
                "peak_mib": self.sessions.peak_mib,
            }
        )

    def _has_ended(self) -> bool:
        """Whether all generations are done, or the best measured accuracy is `patience` generations old."""
        number, population = self.state.generation, self.settings.population
        if number >= self.settings.generations:
            return True
        found = [one.accuracy for one in self.state.evaluated]
        old = found[: max(0, len(found) - self.settings.patience * population)]
        return number > self.settings.patience and bool(old) and max(old) >= max(found)


def _key(bundle: OpenBundle, settings: LocalSearchSettings, data: OwnImages, latencies: SegmentLatencies) -> str:
    described = [bundle.digest, settings.model_dump(), data.digest, latencies.p50_ms]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()
