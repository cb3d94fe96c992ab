"""Whole SubNets measured on a device: to fit and check the latency predictor, and for winners."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from profiling_agents.client import AgentClient, ModelJob
from profiling_agents.messages import Measurement, MeasureSettings
from tailor_ir import SuperNet
from tasks.ahead import ahead
from tasks.artifacts import append_line, read_lines
from tasks.convert import ConversionError, Limits
from tasks.jobs import job_for
from tasks.progress import Progress

Config = Mapping[str, Any]
Statistics = dict[str, torch.Tensor]
ATTEMPTS = 2  # while a measurement is noisy


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
            for digest, job in ahead(missing.items(), self._job, device):
                known[digest] = self.time(job) if isinstance(job, ModelJob) else Measurement.failed(digest, job)
                append_line(file, known[digest].model_dump(mode="json"))
                bar.advance()
        return [known[digest] for digest in digests]

    def time(self, job: ModelJob) -> Measurement:
        """One model; measured again while it is noisy, the steadiest counts."""
        best: Measurement | None = None
        for _ in range(ATTEMPTS):
            (found,) = self.client.measure([job], self.settings)
            if best is None or (found.spread or 0.0) < (best.spread or 0.0):
                best = found
            if not found.noisy:
                break
        assert best is not None
        return best

    def _job(self, subnet: tuple[str, Config]) -> tuple[str, ModelJob | str]:
        """The SubNet for the device, or why it cannot be."""
        digest, config = subnet
        try:
            formats = self.client.capabilities().formats
            return digest, job_for(formats, digest, onnx_of(self.net, config), self.limits)
        except ConversionError as error:
            return digest, str(error)
