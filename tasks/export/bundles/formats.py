"""Further formats of a bundle's SubNets, with files, runs, costs and accuracy, and the rows of SubNets in the manifest.

The row of a SubNet comes from its model card and its policy.
"""

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from adaptive_runtime.base.arrays import FLOAT_BYTES
from adaptive_runtime.base.numbers import clipped_share
from adaptive_runtime.bundle import bundles
from adaptive_runtime.bundle.chains import ChainManifest, ChainTensor, session_options
from adaptive_runtime.bundle.chains.runs import RUNTIMES
from adaptive_runtime.exits import Thresholds
from adaptive_runtime.samples.inputs import unpacked
from profiling_agents.messages import MIB, Capabilities
from tailor_ir import SuperNet
from tasks.base.schemas.exports import Card, ExportedFile, FileTensor
from tasks.base.schemas.winners import LevelRow, Levels
from tasks.exits.policies import SubnetPolicy
from tasks.export.chains import BundledChain
from tasks.export.files import SUFFIXES, Images, in_batches
from tasks.export.settings import FILES
from tasks.measuring.settings import Tolerance


def subnet_row(
    net: SuperNet,
    card: Card,
    nets: Mapping[bundles.BundleFormat, bundles.BundledNet],
    chain: ChainManifest | None,
    thresholds: Thresholds | None,
    policy: SubnetPolicy | None,
) -> bundles.BundledSubNet:
    """The row of a SubNet. chain: its timed segments; None: it passes no exits. policy: data on these exits."""
    early = None
    if thresholds is not None and policy is not None and (tested := policy.tested) is not None:
        early = bundles.EarlyAnswers.model_validate(
            {name: getattr(tested, name) for name in bundles.EarlyAnswers.model_fields}
        )
    activations_bytes = net.batch * net.peak_activation_bytes(card.config)
    return bundles.BundledSubNet(
        digest=card.digest,
        config=dict(card.config),
        input_shape=card.input_shape,
        preparation=card.preparation,
        nets=dict(nets),
        macs=card.macs,
        parameters=card.parameters,
        accuracy=card.accuracy,
        latency=_latency(card),
        predicted_ms=card.predicted_ms,
        energy_mj=card.latency.energy_mj,
        memory=bundles.SubNetMemory(
            weights_mib=FLOAT_BYTES * card.parameters / MIB, activations_mib=activations_bytes / MIB
        ),
        exits=() if chain is None else _exits(chain, thresholds, policy),
        thresholds=thresholds,
        early=early,
        adapted=None if card.adapted is None else card.adapted.sha256,
    )


def _latency(card: Card) -> bundles.SubNetLatency | None:
    found = card.latency
    if found.p50_ms is None or found.p90_ms is None or found.spread is None:
        return None
    return bundles.SubNetLatency(
        p50_ms=found.p50_ms, p90_ms=found.p90_ms, spread=found.spread, n=found.n, noisy=found.noisy
    )


def _exits(
    chain: ChainManifest, thresholds: Thresholds | None, policy: SubnetPolicy | None
) -> tuple[bundles.BundledExit, ...]:
    known = {} if policy is None else {row.exit: row.accuracy for row in policy.exits}
    bars = () if thresholds is None else thresholds.thresholds
    macs = accumulate(segment.macs for segment in chain.segments)
    return tuple(
        bundles.BundledExit(
            exit=name,
            macs=until,
            latency_ms=until_ms,
            accuracy=known.get(name),
            threshold=bars[at] if at < len(bars) else None,
        )
        for at, (name, until, until_ms) in enumerate(zip(chain.exits, macs, chain.until_ms, strict=True))
    )


WITH_CHAIN: tuple[bundles.BundleFormat, ...] = ("ncnn", "ncnn_bf16")
"""Formats besides ONNX whose exported files have segments."""


@dataclass(frozen=True, slots=True)
class FurtherFormat:
    """A format other than that of the bundle's device.

    device: the same machine in this format's runtime and precision. rows: whole SubNets by digest, if some state prefers them
    or one of their exits in this format. own: the same SubNets in the format of the bundle's device.
    """

    form: bundles.BundleFormat
    device: Capabilities
    rows: Mapping[str, LevelRow]
    own: Mapping[str, LevelRow]

    def run(self, tolerance: Tolerance) -> bundles.BundleRun:
        """The runtime, precision and settings with which the files run."""
        device = self.device
        return bundles.BundleRun(
            runtime=RUNTIMES[bundles.CHAIN_FORMATS[self.form]],
            version=device.version,
            threads=device.threads,
            precision=device.precision,
            settings=device.engine.applied(device.settings, device.engine_options),
            measured=False,
            tolerance=tolerance.of(device.precision),
        )

    def figures(self, card: Card) -> bundles.NetFigures:
        """Costs and accuracy of a SubNet: costs from its row; accuracy as evaluated in int8, else corrected by the format's
        loss.
        """
        row = self.rows[card.digest]
        lost, file = self.own[card.digest].accuracy - row.accuracy, card.files.get(FILES[self.form])
        int8 = None if file is None else file.int8
        by_row = {split: clipped_share(share - lost) for split, share in card.accuracy.items()}
        known = row.figures(next(iter(card.accuracy), "validation"))
        return known.model_copy(update={"accuracy": by_row if int8 is None else int8.accuracy})

    def net(
        self,
        card: Card,
        out: Path,
        folder: Path,
        chain: BundledChain | None,
        checked: tuple[Images, Images],
        batch: int,
    ) -> bundles.BundledNet | None:
        """Copy the exported files from `out` into the bundle `folder`; None if there are none.

        chain: of the ncnn files. checked: images (N, C, H, W) in the SubNet's shape, and torch's answers (N, K) for them.
        """
        file = card.files.get(FILES[self.form])
        if card.digest not in self.rows or file is None or file.state != "ok" or file.run is None:
            return None
        names = tuple(f"{card.digest}{suffix}" for suffix in SUFFIXES[FILES[self.form]] if not suffix.endswith(".json"))
        for name in names:
            shutil.copyfile(out / name, folder / name)
        chain = chain if self.form in WITH_CHAIN else None
        return bundles.BundledNet(
            files=names,
            input=chain_input(file.run.inputs),
            output=chain_tensor(file.run.outputs[0]),
            chain=None if chain is None else chain.name,
            chain_files=() if chain is None else tuple(chain.manifest.written()),
            relative_difference=self._difference(folder / names[0], file, checked, batch),
            figures=self.figures(card),
        )

    def _difference(self, path: Path, file: ExportedFile, checked: tuple[Images, Images], batch: int) -> float:
        """The largest difference from torch over the largest value; in int8 this includes rounding."""
        if self.form != "onnx_int8":
            return file.relative_difference or 0.0
        inputs, expected = checked
        options = session_options(self.device.engine.applied(self.device.settings, self.device.engine_options))
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        got = in_batches(inputs, batch, lambda x: run_onnx(session, x))
        return float(np.abs(got - expected).max() / np.abs(expected).max())


def chain_tensor(one: FileTensor) -> ChainTensor:
    """A tensor of a file in the form of manifests. ValueError: neither float32 nor int64."""
    return ChainTensor.model_validate(one.model_dump())


def chain_input(tensors: Iterable[FileTensor]) -> ChainTensor:
    """The input of a network; if it has several, the first one, with the others in `beside`."""
    first, *others = map(chain_tensor, tensors)
    return first.model_copy(update={"beside": tuple(others)}) if others else first


def run_onnx(session: Any, x: Images) -> Images:
    """The first output of an onnxruntime session for a batch of all its inputs."""
    names = [one.name for one in session.get_inputs()]
    found: Images = np.asarray(session.run(None, dict(zip(names, unpacked(x), strict=True)))[0])
    return found


def further_formats(levels: Levels, devices: Mapping[str, Capabilities]) -> tuple[FurtherFormat, ...]:
    """The formats of a table other than that of the bundle's device. devices: by their names in the run."""
    of = {row.format: row.device for row in levels.rows}
    own = next((form for form, name in of.items() if name == levels.device), None)
    kept = {(row.digest, row.format) for row in levels.rows if row.kept}
    return tuple(
        FurtherFormat(
            form=form,
            device=devices[name],
            rows={digest: row for digest, row in levels.whole(form).items() if (digest, form) in kept},
            own={} if own is None else levels.whole(own),
        )
        for form, name in of.items()
        if form != own
    )
