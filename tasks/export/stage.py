"""ONNX, NCNN and torch files of every chosen SubNet, checked and measured on the device.

Each has BatchNorm statistics of its own, folded into its weights. What the device does not run is checked in a local
runtime. A file whose outputs differ from torch is not kept.
"""

import hashlib
import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tailor_ir
from profiling_agents.client import AgentClient, ModelTooLargeError, RunError
from profiling_agents.messages import Measurement
from tailor_ir import SuperNet
from tasks.artifacts import append_line, read_lines, write_bytes, write_json
from tasks.baseline import measure_baseline
from tasks.convert import ConversionError
from tasks.evaluate import EvaluationData, count_correct, statistics_of
from tasks.export.card import UNKNOWN_PROVENANCE, Provenance, architecture, device_row, markdown
from tasks.export.files import SUFFIXES, Images, Made, Maker, references
from tasks.export.settings import FileFormat, Settings
from tasks.export.switching import write_bundle
from tasks.predict.measure import SubNetMeter
from tasks.progress import Progress
from tasks.search import FRONT_FILE, read_front

EXPORTS_FILE = "exports.json"
DONE_FILE = "exports.jsonl"
MEASURED_FILE = "winners_measured.jsonl"
ROUNDS = 2
"""Fewest that tell how a disturbed device slows small SubNets beside the largest (`tasks.predict.calm`)."""

Config = Mapping[str, Any]
Row = dict[str, Any]


def run(
    settings: Settings,
    supernet: Path,
    search: Path,
    data: Mapping[str, EvaluationData],
    client: AgentClient,
    out: Path,
    progress: Progress,
    batch: int = 1,
    provenance: Provenance = UNKNOWN_PROVENANCE,
) -> Row:
    """Export every winner of `search/front.json` into `out`; writes and returns `exports.json`.

    `data`: split -> images to state the accuracy on; the first one's images check the files. `batch`: samples of an ONNX
    file; NCNN files have no batch axis. `provenance`: for the model cards. The caller holds the device's lease. What an
    earlier call finished is not done again. AgentError when the device is gone; call again.
    """
    front = read_front(search / FRONT_FILE)
    winners = {row["digest"]: row["config"] for row in front["winners"]}
    net = tailor_ir.load(supernet, batch=batch)
    meter = SubNetMeter(net, client, settings.measure, settings.limits, ROUNDS)
    found = meter.measure([net.max_config, *winners.values()], out / MEASURED_FILE, progress, "measure winners")
    measured = dict(zip(winners, found[1:], strict=True))
    done = {row["digest"]: row for row in read_lines(out / DONE_FILE)}
    todo = [digest for digest in winners if digest not in done]
    with ExitStack() as stack, progress.bar("export", len(winners), len(winners) - len(todo)) as bar:
        exporter = Exporter(settings, net, data, Maker(settings, net, client, stack), provenance, out)
        for digest in todo:
            done[digest] = exporter.export(digest, winners[digest], measured[digest])
            append_line(out / DONE_FILE, done[digest])
            bar.advance()
    cards = [done[digest] for digest in winners]
    bundle = {}
    if settings.bundle:
        bundle = {"bundle": write_bundle(settings, net, cards, next(iter(data.values())), out, progress)}
    result = {
        "device": client.capabilities().model_dump(mode="json"),
        "winners": [_winner(row, done[row["digest"]]) for row in front["winners"]],
        "subnets": cards,
        "largest": {"latency": found[0].model_dump(mode="json", exclude={"key"})},
        **bundle,
        "baseline": measure_baseline(front["baseline"], meter, data, out, progress),
    }
    write_json(out / EXPORTS_FILE, result)
    return result


def _winner(chosen: Row, exported: Row) -> Row:
    """Budget, predicted and measured side by side."""
    measured_ms = exported["latency"]["p50_ms"]
    return {
        "digest": chosen["digest"],
        "budget_ms": chosen["budget_ms"],
        "predicted_ms": chosen["predicted_ms"],
        "measured_ms": measured_ms,
        "within_budget": measured_ms is not None and measured_ms <= chosen["budget_ms"],
        "predicted_accuracy": chosen["predicted_accuracy"],
        "accuracy": exported["accuracy"],
        "files_ok": all(file["state"] == "ok" for file in exported["files"].values()),
    }


@dataclass(frozen=True, slots=True)
class Exporter:
    """Exports single SubNets."""

    settings: Settings
    net: SuperNet
    data: Mapping[str, EvaluationData]
    maker: Maker
    provenance: Provenance
    out: Path

    def export(self, digest: str, config: Config, measured: Measurement) -> Row:
        """Write the files of one SubNet, check them, and write its model card, which is returned."""
        images = next(iter(self.data.values()))
        statistics = statistics_of(self.net, dict(config), images)
        module = self.net.build(dict(config), statistics).eval()
        inputs, expected = references(self.net, module, config, images, self.settings.check_images)
        files = {}
        for name in self.settings.formats:
            try:
                made = self.maker.make(name, digest, config, statistics, module)
                files[name] = self._file(name, digest, made, inputs, expected)
            except (ConversionError, ModelTooLargeError, RunError) as error:
                files[name] = {"state": "failed", "reason": str(error)}
        card = {
            "digest": digest,
            "config": dict(config),
            "batch": self.net.batch,
            "input_shape": list(self.net.input_shape(dict(config))),
            "macs": self.net.macs(dict(config)),
            "parameters": self.net.parameters(dict(config)),
            "architecture": architecture(self.net, config),
            "accuracy": {split: self._accuracy(module, config, data) for split, data in self.data.items()},
            "files": files,
            "latency": measured.model_dump(mode="json", exclude={"key"}),
            "device": device_row(self.maker.client.capabilities()),
            "made_from": {
                "network": dict(self.provenance.network),
                "data": self.provenance.data,
                "digests": dict(self.provenance.digests),
            },
        }
        write_json(self.out / f"{digest}.json", card)
        write_bytes(self.out / f"{digest}.md", markdown(card).encode())
        return card

    def _accuracy(self, module: torch.nn.Module, config: Config, images: EvaluationData) -> float:
        height, width = self.net.input_shape(dict(config))[-2:]
        return count_correct(module, images.batches((height, width))).share

    def _file(self, name: FileFormat, digest: str, made: Made, inputs: Images, expected: Images) -> Row:
        """Check one format against torch and keep its files when they agree."""
        got = made.outputs(inputs)
        repeated = np.tile(expected, (len(got) // len(expected), *(1,) * (expected.ndim - 1)))
        difference = float(np.abs(got - repeated).max() / np.abs(expected).max())
        tolerance = self.settings.tolerance.of(made.precision)
        checked = {
            "relative_difference": difference if math.isfinite(difference) else None,
            "tolerance": tolerance,
            "images": len(inputs),
            "on_device": made.on_device,
            "runtime": made.runtime,
            "precision": made.precision,
        }
        if not difference <= tolerance:
            reason = f"outputs differ from torch by {difference:.3g}; allowed in {made.precision}: {tolerance:g}"
            return {"state": "failed", "reason": reason, **checked}
        contents = {f"{digest}{suffix}": part for suffix, part in zip(SUFFIXES[name], made.contents, strict=True)}
        for file, content in contents.items():
            write_bytes(self.out / file, content)
        digests = {file: hashlib.sha256(content).hexdigest() for file, content in contents.items()}
        return {"state": "ok", "sha256": digests, "bytes": sum(map(len, made.contents)), **checked}
