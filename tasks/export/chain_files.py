"""The files of a chain in each format, the jobs that run its segments, and their comparison with torch.

A chain has all exits that a SubNet passes, or, with thresholds, the exits whose heads must run. The comparison covers
every value of a segment, while the files read each other's values.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_runtime.bundle.chains import ChainFormat
from adaptive_runtime.exits import Thresholds
from profiling_agents.client import AgentClient, ModelJob
from tailor_ir import Config, Segment, Statistics, SuperNet
from tasks.base.schemas.exports import Card, ExportedSegment
from tasks.evaluation.ncnn.conversion import convert
from tasks.evaluation.ncnn.files import masks_of
from tasks.evaluation.subnets import EvaluationData, statistics_of
from tasks.exits.policies import SubnetPolicy
from tasks.export.files import Builder, Images
from tasks.export.onnx_files import BATCHES, dynamic_batch
from tasks.measuring.jobs import ncnn_job, onnx_job
from tasks.measuring.subnets import implementations_of

THRESHOLDS_FILE = "thresholds.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainPlan:
    """A SubNet up to the last exit of its chain, and the chain's exits in order.

    thresholds: for these exits; None: unknown. shares: of the test images that leave at each exit.
    """

    config: Config
    exits: tuple[str, ...]
    thresholds: Thresholds | None = None
    shares: tuple[float, ...] = ()

    @property
    def thresholds_file(self) -> dict[str, bytes]:
        """The file with thresholds, content by name; {} without thresholds."""
        return {} if self.thresholds is None else {THRESHOLDS_FILE: self.thresholds.to_json().encode()}

    def expected_ms(self, segments: Sequence[ExportedSegment]) -> float | None:
        """Mean latency of samples that leave as the test images do; None without thresholds or measured segments."""
        known = [segment.latency_ms for segment in segments if segment.latency_ms is not None]
        if self.thresholds is None or len(known) < len(segments):
            return None
        return sum(share * until_ms for share, until_ms in zip(self.shares, accumulate(known), strict=True))


def plan_of(net: SuperNet, card: Card, policy: SubnetPolicy | None) -> ChainPlan:
    """The chain of a SubNet; policy: source of its thresholds, if it has any."""
    if policy is None or policy.thresholds is None:
        return ChainPlan(config=card.config, exits=net.exits(card.config))
    thresholds = Thresholds.model_validate(policy.thresholds)
    rows = [policy.exits[place] for place in thresholds.needed]
    exits = tuple(row.exit for row in rows)
    return ChainPlan(
        config=net.space.canonical({**card.config, "exit": exits[-1]}),
        exits=exits,
        thresholds=thresholds.at(thresholds.needed),
        shares=tuple(row.share or 0.0 for row in rows),
    )


NCNN_FILES = ("segments.param", "segments.bin")


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeChain:
    """A chain in one format.

    contents: of the files, by name. jobs: by samples per run, one job for each exit in order: in ONNX the segment that ends
    there; in ncnn the whole net, with the answers of all exits up to that one. batch: of the jobs that are timed and described.
    free: the number of samples is open. masks: of ncnn's layers.
    """

    format: ChainFormat
    contents: Mapping[str, bytes]
    jobs: Mapping[int, Sequence[ModelJob]]
    batch: int
    free: bool = False
    masks: Mapping[str, int] = field(default_factory=dict)

    @property
    def own_jobs(self) -> Sequence[ModelJob]:
        """The jobs that are timed and described."""
        return self.jobs[self.batch]


def chain_statistics(net: SuperNet, config: Config, exits: Sequence[str], images: EvaluationData) -> Statistics:
    """BatchNorm statistics of a SubNet and of the heads of exits."""
    found: Statistics = {}
    for name in exits:
        found |= statistics_of(net, {**config, "exit": name}, images)
    return found


def onnx_chain(builder: Builder, digest: str, plan: ChainPlan, statistics: Statistics) -> MadeChain:
    """The chain of a SubNet as ONNX files."""
    net, settings = builder.net, builder.settings
    if settings.dynamic_batch:
        pairs = zip(*(_segment_files(net, plan, statistics, batch) for batch in BATCHES), strict=True)
        models, sizes = [dynamic_batch(pair) for pair in pairs], {1, net.batch, settings.check_images}
    else:
        models, sizes = _segment_files(net, plan, statistics, net.batch), {net.batch}
    return MadeChain(
        format="onnx",
        contents={f"{at}.onnx": model for at, model in enumerate(models)},
        jobs={
            size: [onnx_job(f"{digest} segment {at}", model, size) for at, model in enumerate(models)]
            for size in sorted(sizes)
        },
        batch=net.batch,
        free=settings.dynamic_batch,
    )


def _segment_files(net: SuperNet, plan: ChainPlan, statistics: Statistics, batch: int) -> list[bytes]:
    """The ONNX models of all segments, BatchNorm folded."""
    with tempfile.TemporaryDirectory(prefix="autotailor-export-") as folder:
        net.export_segments(
            plan.config, folder, statistics=statistics, exits=plan.exits, fold_batch_norm=True, batch=batch
        )
        return [(Path(folder) / f"{at}.onnx").read_bytes() for at in range(len(plan.exits))]


def ncnn_chain(builder: Builder, digest: str, plan: ChainPlan, statistics: Statistics) -> MadeChain:
    """The chain of a SubNet as one net of ncnn. ConversionError if it has none."""
    net = builder.net
    with tempfile.TemporaryDirectory(prefix="autotailor-export-") as folder:
        path = Path(folder) / "answers.onnx"
        net.export_answers(plan.config, path, statistics=statistics, exits=plan.exits, fold_batch_norm=True, batch=1)
        model = path.read_bytes()
    names: dict[str, str] = {}
    for name in plan.exits:
        names |= implementations_of(net, {**plan.config, "exit": name}, builder.implementations)
    files = convert(model, builder.settings.limits, implementations=names)
    job = ncnn_job(digest, model, files)
    assert job.output_shapes is not None, "a job made from ONNX has the shapes of its outputs"
    until = [
        replace(
            job,
            key=f"{digest} until exit {count - 1}",
            output_names=job.output_names[:count],
            output_shapes=job.output_shapes[:count],
        )
        for count in range(1, len(job.output_names) + 1)
    ]
    contents = dict(zip(NCNN_FILES, (files.param, files.bin), strict=True))
    return MadeChain(format="ncnn", contents=contents, jobs={1: until}, batch=1, masks=masks_of(files))


SMALLEST = 1e-12
Values = list[NDArray[np.float32]]
"""The answer of a segment, then the values it passes on; ncnn keeps these internal and gives the answer alone."""


def largest_difference(
    client: AgentClient, made: MadeChain, segments: Sequence[Segment], images: Images
) -> tuple[float, ...]:
    """For each segment the largest difference of a value from torch's, over the largest value of torch. images: (N, C, H,
    W).
    """

    def of_net(client: AgentClient, jobs: Sequence[ModelJob], x_BCHW: Images) -> list[Values]:
        return [[answer] for answer in client.run(jobs[-1], [x_BCHW])]

    run = of_net if made.format == "ncnn" else _of_files
    found = [differences_of(segments, images, size, partial(run, client, jobs)) for size, jobs in made.jobs.items()]
    return tuple(np.max(found, 0).tolist())


def differences_of(
    segments: Sequence[Segment], images: Images, size: int, run: Callable[[Images], Iterable[Values]]
) -> tuple[float, ...]:
    """Like `largest_difference`, for the values, or the answer alone, that `run` gives for batches (`size`, C, H, W).

    The last batch is padded with its last image.
    """
    worst = np.zeros(len(segments))
    for start in range(0, len(images), size):
        part = images[start : start + size]
        x_BCHW = np.concatenate([part, np.repeat(part[-1:], size - len(part), axis=0)])
        for at, (ours, theirs) in enumerate(zip(run(x_BCHW), _torchs(segments, x_BCHW), strict=True)):
            found = [_difference(own, known) for own, known in zip(ours, theirs[: len(ours)], strict=True)]
            worst[at] = np.max([worst[at], *found])  # np.max propagates NaN
    return tuple(worst.tolist())


def _torchs(segments: Sequence[Segment], x_BCHW: Images) -> Iterator[Values]:
    """The values of each segment in torch."""
    values = {segments[0].inputs[0]: torch.from_numpy(x_BCHW)}
    for segment in segments:
        with torch.inference_mode():
            answer = segment(values)
        yield [answer.numpy(), *(values[name].numpy() for name in segment.outputs[1:])]


def _of_files(client: AgentClient, jobs: Sequence[ModelJob], x_BCHW: Images) -> Iterator[Values]:
    """The values of each file, computed from those of the files before it."""
    values = {jobs[0].input_names[0]: x_BCHW}
    for job in jobs:
        found = client.run(job, [values[name] for name in job.input_names])
        values.update(zip(job.output_names, found, strict=True))
        yield list(found)


def _difference(ours: Images, theirs: Images) -> float:
    return float(np.abs(ours - theirs).max() / max(float(np.abs(theirs).max()), SMALLEST))
