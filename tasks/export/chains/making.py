"""The files of a chain in each format, and the jobs that run its segments."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from adaptive_runtime.bundle.chains import ChainFormat
from profiling_agents.client import ModelJob
from tailor_ir import Config, Statistics, SuperNet
from tasks.evaluation.ncnn.conversion import convert
from tasks.evaluation.ncnn.kernels import masks_of
from tasks.evaluation.subnets import EvaluationData, statistics_of
from tasks.export.chains.leaving import ChainPlan
from tasks.export.dynamic import BATCHES, dynamic_batch
from tasks.export.files import Maker
from tasks.measuring.jobs import ncnn_job, onnx_job
from tasks.measuring.subnets import implementations_of

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


def make_chain(name: ChainFormat, maker: Maker, digest: str, plan: ChainPlan, statistics: Statistics) -> MadeChain:
    """The chain of a SubNet in one format. ConversionError if it has none."""
    return _onnx(maker, digest, plan, statistics) if name == "onnx" else _ncnn(maker, digest, plan, statistics)


def _onnx(maker: Maker, digest: str, plan: ChainPlan, statistics: Statistics) -> MadeChain:
    net, settings = maker.net, maker.settings
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


def _ncnn(maker: Maker, digest: str, plan: ChainPlan, statistics: Statistics) -> MadeChain:
    net = maker.net
    with tempfile.TemporaryDirectory(prefix="autotailor-export-") as folder:
        path = Path(folder) / "answers.onnx"
        net.export_answers(plan.config, path, statistics=statistics, exits=plan.exits, fold_batch_norm=True, batch=1)
        model = path.read_bytes()
    names: dict[str, str] = {}
    for name in plan.exits:
        names |= implementations_of(net, {**plan.config, "exit": name}, maker.implementations)
    files = convert(model, maker.settings.limits, implementations=names)
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
