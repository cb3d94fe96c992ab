"""Stage "engine": the options with which a device's runtime runs whole networks, chosen by measurement.

The largest SubNet, the smallest and a few random ones are timed under every choice of every option, each beside the current
engine. Later stages run all models with the chosen engine.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import tailor_ir
from profiling_agents.client import AgentClient, ModelJob
from profiling_agents.messages import DEFAULT_ENGINE, MIB, AgentError, Capabilities, Engine
from tailor_ir import SuperNet
from tasks.base.errors import UserError
from tasks.base.progress import Progress
from tasks.base.schemas.stored import StageResult
from tasks.evaluation.conversion import ConversionError, onnx_of
from tasks.evaluation.executorch.programs import subnet_jobs
from tasks.evaluation.ncnn.conversion import convert
from tasks.evaluation.quantise.timing import timed_onnx
from tasks.measuring.jobs import ncnn_job, onnx_job
from tasks.measuring.runtime_options.chosen import ENGINE_FILE, ChosenEngine, TimedSubNet
from tasks.measuring.runtime_options.descent import Descent, gain_of
from tasks.measuring.runtime_options.outputs import CheckedModel, OutputCheck
from tasks.measuring.runtime_options.settings import Settings
from tasks.measuring.runtime_options.statistics import Comparison
from tasks.measuring.runtime_options.timing import EngineTimer
from tasks.measuring.subnets import validation_configs

TIMES_FILE = "engines.jsonl"
KINDS = ("largest", "smallest")


def run(
    settings: Settings,
    supernet: Path,
    device: str,
    client: AgentClient,
    out: Path,
    progress: Progress,
    batch: int = 1,
    *,
    by_operator: bool = False,
) -> StageResult:
    """Choose the engine of a device (its name); writes and returns `engine.json`.

    by_operator: options that can be chosen for single operators are not tried, since a later stage chooses them per operator.
    The client has the runtime's defaults and holds the lease. A second call resumes from the times in `out`. UserError for a
    fixed choice that the device lacks, or that changes outputs.
    """
    found = client.capabilities()
    fixed = _fixed(settings, device, found)
    if not found.engine_options or not settings.wanted:
        return _file(device, found, fixed, fixed).write(out / ENGINE_FILE)
    maker = ModelsOfSubNets(tailor_ir.load(supernet, batch=batch), settings, found)
    jobs, failed = maker.timed()
    check = OutputCheck(client, maker.whole(tuple(jobs)), settings.tolerance.of(found.precision), settings.seed)
    if fixed != DEFAULT_ENGINE and (reason := check.difference(fixed)):
        raise UserError(_where(device), f"{fixed.text}: {reason}", next_step="leave it to the runtime's default")
    choices = sum(len(one.choices) + 1 for one in found.engine_options)
    with progress.bar("engine", choices * settings.rounds * len(jobs)) as bar:
        timer = EngineTimer(client, jobs, settings.measure, out / TIMES_FILE, bar)
        failed |= timer.drop_failures()
        descent = Descent(settings, found.engine_options, timer, check.difference, by_operator)
        chosen, gain = _chosen(settings, fixed, descent, found)
    return (
        _file(device, found, chosen, fixed)
        .model_copy(
            update={
                "gain": None if gain is None else gain_of(gain),
                "tried": tuple(descent.tried),
                "left_out": tuple(descent.left_out),
                "subnets": tuple(_timed(maker.kinds, timer, chosen)),
                "failed": failed,
                "measured_s": round(timer.spent_s, 3),
            }
        )
        .write(out / ENGINE_FILE)
    )


def _where(device: str) -> str:
    return f"engine of device '{device}'"


def _fixed(settings: Settings, device: str, found: Capabilities) -> Engine:
    """The fixed choices; UserError if the device lacks one."""
    engine = Engine(choices=settings.fixed)
    try:
        engine.settled(found.engine_options)
    except AgentError as error:
        raise UserError(
            _where(device), str(error), next_step=f"change engine.fixed or device.{device}.engine"
        ) from error
    return engine


def _chosen(
    settings: Settings, fixed: Engine, descent: Descent, found: Capabilities
) -> tuple[Engine, Comparison | None]:
    """The engine and its comparison with the runtime's defaults; None if it equals these, or nothing could be timed."""
    timed = bool(descent.timer.jobs)
    engine = descent.tuned(fixed) if settings.tune and timed else fixed
    chosen = engine.without_defaults(found.engine_options)
    return chosen, descent.beside(DEFAULT_ENGINE, chosen) if chosen != DEFAULT_ENGINE and timed else None


def _timed(kinds: Mapping[str, str], timer: EngineTimer, chosen: Engine) -> Iterator[TimedSubNet]:
    """The SubNets' median latencies in the comparison of the chosen engine with the defaults."""
    for digest in timer.jobs:
        default_ms, chosen_ms = (timer.median_ms(digest, one, chosen) for one in (DEFAULT_ENGINE, chosen))
        if default_ms is not None and chosen_ms is not None:
            yield TimedSubNet(digest=digest, kind=kinds[digest], default_ms=default_ms, chosen_ms=chosen_ms)


def _file(device: str, found: Capabilities, chosen: Engine, fixed: Engine) -> ChosenEngine:
    """The content of `engine.json` for an engine without measurements."""
    options = {
        one.name: (one.default, *(choice for choice in one.choices if choice != one.default))
        for one in found.engine_options
    }
    return ChosenEngine(
        device=device,
        chosen=chosen.without_defaults(found.engine_options).choices,
        fixed=fixed.choices,
        gain=None,
        tried=(),
        left_out=(),
        options=options,
        subnets=(),
        failed={},
        measured_s=0.0,
    )


class ModelsOfSubNets:
    """SubNets as jobs in the device's format: without weights for timing, with weights for running."""

    def __init__(self, net: SuperNet, settings: Settings, device: Capabilities) -> None:
        self._net, self._settings, self._device = net, settings, device
        configs = validation_configs(net, settings.random_subnets, settings.seed)
        names = (*KINDS, *["random"] * len(configs))
        self._configs = {net.space.digest(config): config for config in configs}
        self.kinds = dict(zip(self._configs, names, strict=False))
        self._converted: dict[str, ModelJob] = {}

    def timed(self) -> tuple[dict[str, ModelJob], dict[str, str]]:
        """Jobs by digest, the largest SubNet's first; and the reasons of failed conversions, by digest."""
        jobs: dict[str, ModelJob] = {}
        failed: dict[str, str] = {}
        for digest in self._configs:
            try:
                jobs[digest] = self._job(digest, weights=False)
            except ConversionError as error:
                failed[digest] = str(error)
        return jobs, failed

    def whole(self, digests: Sequence[str]) -> list[CheckedModel]:
        """The largest and the smallest of these SubNets with their weights, unless the model is too large for the device."""
        ends = {digests[0], *(one for one in digests if self.kinds[one] == "smallest")} if digests else set[str]()
        jobs = {digest: self._job(digest, weights=True) for digest in sorted(ends)}
        return [
            CheckedModel(job, partial(self._net.sample_inputs, self._configs[digest]))
            for digest, job in jobs.items()
            if max(map(len, job.files)) <= self._device.max_model_mib * MIB
        ]

    def _job(self, digest: str, *, weights: bool) -> ModelJob:
        config = self._configs[digest]
        if "onnx" in self._device.formats:
            model = timed_onnx(self._net, config, self._device.precision, weights=weights)
            return onnx_job(digest, model, self._net.batch)
        if "executorch" in self._device.formats:
            program = subnet_jobs({digest: (self._net, config)}, self._settings.limits)[digest]
            if isinstance(program, ConversionError):
                raise program
            return program
        job = self._converted.get(digest)
        if job is None:
            model = onnx_of(self._net, config)
            job = ncnn_job(digest, model, convert(model, self._settings.limits))
            if self.kinds[digest] in KINDS:
                self._converted[digest] = job
        return job if weights else replace(job, files=job.files[:1])
