"""Whole SubNets measured on a device: to fit and check the latency predictor, and for winners."""

import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from profiling_agents.client import AgentClient, ModelJob
from profiling_agents.machine import available_cores
from profiling_agents.messages import Format, Measurement, MeasureSettings
from tailor_ir import SuperNet
from tasks.ahead import ahead, pieces
from tasks.artifacts import append_line, read_lines
from tasks.convert import ConversionError, Limits
from tasks.jobs import job_for
from tasks.progress import Progress

Config = Mapping[str, Any]
Statistics = dict[str, torch.Tensor]
ATTEMPTS = 2  # while a measurement is noisy
AT_ONCE = 8
"""SubNets that the device has at a time, and runs in turn."""


def onnx_of(net: SuperNet, config: Config, statistics: Statistics | None = None, batch: int | None = None) -> bytes:
    """ONNX model of one SubNet, BatchNorm folded; batch: the SuperNet's own unless given."""
    with tempfile.TemporaryDirectory(prefix="autotailor-export-") as folder:
        path = Path(folder) / "subnet.onnx"
        net.export(dict(config), path, statistics=statistics, fold_batch_norm=True, batch=batch)
        return path.read_bytes()


def validation_configs(net: SuperNet, random_subnets: int, seed: int) -> list[Config]:
    """The largest SubNet, the smallest, and different random ones (fewer when the space has no more)."""
    rng = np.random.default_rng(seed)
    found = {net.space.digest(config): config for config in (net.max_config, net.min_config)}
    wanted = min(len(found) + random_subnets, net.space.distinct)
    while len(found) < wanted:
        config = net.space.sample(rng)
        found.setdefault(net.space.digest(config), config)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class SubNetMeter:
    """Measures SubNets on one device; the caller holds the lease."""

    net: SuperNet
    client: AgentClient
    settings: MeasureSettings
    limits: Limits

    def measure(
        self, configs: Sequence[Config], file: Path, progress: Progress, name: str = "measure"
    ) -> list[Measurement]:
        """Latency of each SubNet in order; each is a JSON line of `file` as it comes. A second call goes on."""
        known = {line["key"]: Measurement.model_validate(line) for line in read_lines(file)}
        digests = [self.net.space.digest(config) for config in configs]
        missing = {d: config for d, config in zip(digests, configs, strict=True) if d not in known}
        device = self.client.capabilities()
        with progress.bar(name, len(set(digests)), len(set(digests)) - len(missing)) as bar:
            for jobs in ahead(
                pieces(list(missing.items()), AT_ONCE), lambda some: self._jobs(some, device.formats), device
            ):
                failures = [Measurement.failed(digest, job) for digest, job in jobs if isinstance(job, str)]
                models = [job for _, job in jobs if isinstance(job, ModelJob)]
                for measurement in [*failures, *self._time(models)]:
                    known[measurement.key] = measurement
                    append_line(file, measurement.model_dump(mode="json"))
                    bar.advance()
        return [known[digest] for digest in digests]

    def time(self, job: ModelJob) -> Measurement:
        """One model; measured again while it is noisy, the steadiest counts."""
        (found,) = self._time([job])
        return found

    def _time(self, jobs: Sequence[ModelJob]) -> list[Measurement]:
        """Models that the device runs in turn; those that are noisy again, the steadiest counts."""
        best: dict[str, Measurement] = {}
        todo = list(jobs)
        for _ in range(ATTEMPTS):
            for found in self.client.measure(todo, self.settings) if todo else ():
                before = best.get(found.key)
                if before is None or (found.spread or 0.0) < (before.spread or 0.0):
                    best[found.key] = found
            todo = [job for job in todo if best[job.key].noisy]
        return list(best.values())

    def _jobs(
        self, subnets: Sequence[tuple[str, Config]], formats: tuple[Format, ...]
    ) -> list[tuple[str, ModelJob | str]]:
        """The SubNets for the device, by digest, or why one cannot be."""
        models = [(digest, onnx_of(self.net, config)) for digest, config in subnets]
        with ThreadPoolExecutor(len(available_cores())) as pool:  # each converts in a process of its own
            return list(pool.map(lambda pair: (pair[0], self._job(pair[0], pair[1], formats)), models))

    def _job(self, digest: str, model: bytes, formats: tuple[Format, ...]) -> ModelJob | str:
        try:
            return job_for(formats, digest, model, self.limits)
        except ConversionError as error:
            return str(error)
