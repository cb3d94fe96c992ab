"""Whole SubNets measured on a device: for fitting and checking the latency predictor, and for winners."""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from profiling_agents.client import AgentClient, ModelJob
from profiling_agents.messages import MIB, Capabilities, Measurement, MeasureSettings, Precision
from profiling_agents.sensing.machine import available_cores
from tailor_ir import Config, Statistics, SuperNet
from tasks.base.artifacts import SubNetLines, SubNetStore, digest_of
from tasks.base.progress import Progress
from tasks.base.schemas.placed import OWN_CHOICES, ChosenImplementations
from tasks.evaluation.conversion import ConversionError, ConversionLimits
from tasks.evaluation.executorch.programs import jobs_of_modules
from tasks.evaluation.ncnn.conversion import convert
from tasks.evaluation.quantise.qdq import timed_onnx
from tasks.measuring.jobs import Calm, TimedLine, ahead, ncnn_job, onnx_job, pieces

ATTEMPTS = 2  # if a measurement is noisy
MOST_ROUNDS = 3  # if the device is not calm
SLOW = 1.03  # relative to the latency on a calm device
STANDARD_ERROR = 0.01  # target of several rounds: relative standard error of a latency
MEDIAN_ERROR = math.sqrt(math.pi / 2)  # ratio of a median's standard error to that of a mean, for normal errors
AT_ONCE = 8
"""SubNets that the device holds at a time, and runs in turn."""
MOST_KEPT_MIB = 512
"""Approximate size of models kept between rounds; others are made again."""


def implementations_of(net: SuperNet, config: Config, chosen: ChosenImplementations) -> dict[str, str]:
    """The chosen implementations in one SubNet, by the values that its operators write."""
    if not chosen.operators:
        return {}
    return {
        name: chosen.operators[one.feature.digest]
        for one in net.placed_operators(config).operators
        if one.feature.digest in chosen.operators
        for name in one.names
    }


@dataclass(frozen=True, slots=True)
class Subject:
    """A SubNet to be timed. key: its name among those that are measured together.

    implementations: of its operators; None: those of the meter. statistics: its own tensors, if they change more than numbers;
    None: the shared ones. content: of its ONNX file, if an existing file is to be timed; raises ConversionError if there is
    none.
    """

    key: str
    net: SuperNet
    config: Config
    implementations: ChosenImplementations | None = None
    statistics: Statistics | None = None
    content: Callable[[], bytes] | None = None

    def model(self, precision: Precision = "fp32", *, weights: bool) -> bytes:
        """Its ONNX model, as `timed_onnx`."""
        if self.content is not None:
            return self.content()
        return timed_onnx(self.net, self.config, precision, self.statistics, weights=weights)


def validation_configs(net: SuperNet, random_subnets: int, seed: int) -> list[Config]:
    """The largest SubNet, the smallest, and different random ones (fewer if the space has no more)."""
    rng = np.random.default_rng(seed)
    found = {net.space.digest(config): config for config in (net.max_config, net.min_config)}
    wanted = min(len(found) + random_subnets, net.space.distinct)
    while len(found) < wanted:
        config = net.space.sample(rng)
        found.setdefault(net.space.digest(config), config)
    return list(found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedDevice:
    """A device whose lease the caller holds. batch: samples of one run. implementations: of operators on the device."""

    name: str
    client: AgentClient
    batch: int = 1
    implementations: ChosenImplementations = OWN_CHOICES


@dataclass(frozen=True, slots=True)
class SubNetMeter:
    """Measures SubNets on one device, each at least `rounds` times; the caller holds the lease.

    SubNets are sent without their weights, which do not change the time; but with them if energy is measured, which they
    change, and in int8. implementations: of their operators on the device.
    """

    net: SuperNet
    client: AgentClient
    settings: MeasureSettings
    limits: ConversionLimits
    rounds: int = 1
    implementations: ChosenImplementations = OWN_CHOICES

    def measure(
        self, configs: Sequence[Config], file: Path | SubNetLines, progress: Progress, name: str = "measure"
    ) -> list[Measurement]:
        """Latency of each SubNet in order, by digest; see `measure_all`."""
        subjects = [Subject(self.net.space.digest(config), self.net, config) for config in configs]
        return self.measure_all(subjects, file, progress, name)

    def measure_all(
        self, subjects: Sequence[Subject], file: Path | SubNetLines, progress: Progress, name: str = "measure"
    ) -> list[Measurement]:
        """Latency of each subject, in order; each is a JSON line of `file` as it comes. A second call continues.

        Lines that a store shares (`lines`) have the largest SubNet as the first subject.

        The first subject is the reference: it runs before and after every few others, and shows what a p50 would be on a calm
        device (`tasks.measuring.jobs`). The median of several rounds counts, since each round loads a model anew, to other
        places in memory. A SubNet that was never measured on a calm device is measured again, up to `MOST_ROUNDS` times in all;
        with several `rounds`, so is one whose median has a standard error above `STANDARD_ERROR`, up to twice `rounds`.
        """
        by_key = {subject.key: subject for subject in subjects}
        made: dict[str, ModelJob | str] = {}
        lines: dict[str, list[TimedLine]] = {key: [] for key in by_key}
        known = file if isinstance(file, SubNetLines) else SubNetLines(file, "key")
        for line in map(TimedLine.model_validate, known.read(by_key)):
            lines.setdefault(line.key, []).append(line)
        most = MOST_ROUNDS if self.rounds == 1 else 2 * self.rounds
        again = ""
        while True:
            calm = Calm.fit(line for found in lines.values() for line in found)
            left = [one for key, one in by_key.items() if len(lines[key]) < most]
            todo = [one for one in left if not _settled(lines[one.key], calm, self.rounds)]
            if not todo:
                break
            with progress.bar(f"{name}{again}", len(todo)) as bar:
                for line in self._lines(todo, subjects[0], made):
                    lines[line.key].append(line)
                    known.append(line.model_dump(mode="json"), shared=line.p50_ms is not None)
                    bar.advance()
            again = " once more" if name.endswith(" again") else " again"
        return [_median(lines[subject.key], calm) for subject in subjects]

    def lines(
        self, store: SubNetStore, supernet: Path, own: Path, progress: Progress, *, anew: bool = False
    ) -> SubNetLines:
        """Latencies of SubNets of the SuperNet in a folder: a stage's own lines, and those in the store.

        Measurements on this device with these settings, in batches of this size, are not repeated unless `anew`.
        """
        key = {
            "measured": "latency",
            "supernet": digest_of(supernet),
            "device": self.client.capabilities().fingerprint,
            "batch": self.net.batch,
            "settings": self.settings.model_dump(mode="json"),
            "limits": asdict(self.limits),
            **({"implementations": self.implementations.operators} if self.implementations.operators else {}),
        }
        return SubNetLines(own, "key", store.open(key, progress), anew)

    def _lines(
        self, subjects: Sequence[Subject], reference: Subject, made: dict[str, ModelJob | str]
    ) -> Iterator[TimedLine]:
        """The measurements of SubNets, each with the reference's latency; in groups that the device runs in turn.

        made: jobs by key, or the reason why there is none; missing ones are added.
        """
        device, weights = self.client.capabilities(), self.settings.energy_ms > 0

        def prepare(some: Sequence[Subject]) -> list[tuple[str, ModelJob | str]]:
            new = [one for one in some if one.key not in made]
            made.update(jobs_of(new, device, self.limits, weights=weights, implementations=self.implementations))
            found = [(one.key, made[one.key]) for one in some]
            kept = sum(len(file) for job in made.values() if isinstance(job, ModelJob) for file in job.files)
            if kept > MOST_KEPT_MIB * MIB:  # includes their weights
                for one in some:
                    del made[one.key]
            return found

        ((_, first),) = prepare([reference])
        around = [
            replace(first, key=f"reference {when}") for when in ("before", "after") if isinstance(first, ModelJob)
        ]
        for jobs in ahead(pieces(subjects, AT_ONCE), prepare, device):
            measured = [Measurement.failed(key, job) for key, job in jobs if isinstance(job, str)]
            models = [job for _, job in jobs if isinstance(job, ModelJob)]
            measured += self.time([*around[:1], *models, *around[1:]])
            references = [one.p50_ms for one in measured if one.p50_ms and one.key.startswith("reference ")]
            reference_ms = float(np.mean(references)) if references else None
            for one in measured:
                if not one.key.startswith("reference "):
                    yield TimedLine.model_validate({**one.model_dump(), "reference_ms": reference_ms})

    def time(self, jobs: Sequence[ModelJob]) -> list[Measurement]:
        """Measurements of models that the device runs in turn; noisy ones are repeated, and the steadiest counts."""
        best: dict[str, Measurement] = {}
        todo = list(jobs)
        for _ in range(ATTEMPTS):
            for found in self.client.measure(todo, self.settings) if todo else ():
                before = best.get(found.key)
                if before is None or (found.spread or 0.0) < (before.spread or 0.0):
                    best[found.key] = found
            todo = [job for job in todo if best[job.key].noisy]
        return list(best.values())


def jobs_of(
    subjects: Sequence[Subject],
    device: Capabilities,
    limits: ConversionLimits,
    *,
    weights: bool,
    implementations: ChosenImplementations = OWN_CHOICES,
    bare: bool = False,
) -> dict[str, ModelJob | str]:
    """Models for the device, by key, or the reason why there is none. implementations: of subjects without their own.

    bare: ncnn's layers are converted without weights, too, twice as fast for large networks; only names of constants differ.
    Implementations need the weights.
    """
    if "executorch" in device.formats:
        modules = {
            one.key: (one.net.build(one.config, one.statistics), (one.net.input_shape(one.config),)) for one in subjects
        }
        outcomes = jobs_of_modules(modules, limits)
        return {key: str(one) if isinstance(one, ConversionError) else one for key, one in outcomes.items()}

    def onnx_or_reason(one: Subject) -> ModelJob | str:
        try:
            return onnx_job(one.key, one.model(device.precision, weights=weights), one.net.batch)
        except ConversionError as error:
            return str(error)

    def ncnn_or_reason(one: Subject, model: bytes) -> ModelJob | str:
        chosen = implementations if one.implementations is None else one.implementations
        names = implementations_of(one.net, one.config, chosen)
        try:
            job = ncnn_job(one.key, model, convert(model, limits, implementations=names))
        except ConversionError as error:
            return str(error)
        return job if weights else replace(job, files=job.files[:1])

    if "onnx" in device.formats:
        return {one.key: onnx_or_reason(one) for one in subjects}
    models = [one.model(weights=weights or not bare) for one in subjects]
    with ThreadPoolExecutor(len(available_cores())) as pool:  # each converts in its own process
        return dict(zip((one.key for one in subjects), pool.map(ncnn_or_reason, subjects, models), strict=True))


def _settled(lines: Sequence[TimedLine], calm: Calm, rounds: int) -> bool:
    """Whether measuring a SubNet again would bring no more information."""
    if any(line.state == "failed" for line in lines):
        return True
    if len(lines) < rounds:
        return False
    if math.isnan(calm.best_ms):
        return True
    slowdowns = calm.slowdowns(lines)
    if rounds == 1:
        return any(line.reference_ms and slow <= SLOW for line, slow in zip(lines, slowdowns, strict=True))
    times_ms = np.array([line.p50_ms for line in lines]) / slowdowns
    error_ms = MEDIAN_ERROR * float(np.std(times_ms, ddof=1)) / math.sqrt(len(lines))
    return error_ms <= STANDARD_ERROR * float(np.median(times_ms))


def _median(lines: Sequence[TimedLine], calm: Calm) -> Measurement:
    """The median of a SubNet's latencies as on a calm device; other fields from the middle line; the last failure if none."""
    found = [line for line in lines if line.p50_ms is not None]
    if not found:
        return lines[-1].measurement
    times_ms = np.array([line.p50_ms for line in found]) / calm.slowdowns(found)
    middle = found[np.argsort(times_ms, kind="stable")[(len(found) - 1) // 2]]
    median_ms = float(np.median(times_ms))
    assert middle.p50_ms is not None, "lines with a latency"
    assert middle.p90_ms is not None, "a latency has its p90"
    changed = {"p50_ms": median_ms, "p90_ms": middle.p90_ms * median_ms / middle.p50_ms}
    return middle.measurement.model_copy(update=changed)
