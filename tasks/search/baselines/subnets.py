"""The SubNets of baselines (uniformly shrunk, random, found with MACs instead of latency), and separate networks.

Separate networks are SuperNets with one SubNet, so that they are evaluated and timed like all others.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import tailor_ir
from tailor_ir import KINDS, Space, SuperNet
from tasks.base.artifacts import NO_STORE, SubNetStore
from tasks.base.errors import UserError
from tasks.base.progress import Progress
from tasks.base.schemas.exports import MeasuredBaseline
from tasks.base.schemas.winners import UniformSubNet
from tasks.data import Dataset
from tasks.evaluation.models import ModelSettings, create, load_weights
from tasks.evaluation.subnets import EvaluationData, accuracies, accuracy_lines
from tasks.measuring.subnets import SubNetMeter
from tasks.prediction.accuracy import AccuracyPredictor
from tasks.prediction.sums import mac_sums
from tasks.search.feasibility import round_up
from tasks.search.methods import Genetic
from tasks.search.problem import Codes, Problem, uniform_codes, unique_rows
from tasks.search.settings import Settings as SearchSettings

MEASURED_FILE = "baseline_measured.jsonl"
EVALUATED_FILE = "baseline_evaluated_{}.jsonl"


def measure_baseline(
    rows: Sequence[UniformSubNet],
    meter: SubNetMeter,
    supernet: Path,
    data: Mapping[str, EvaluationData],
    out: Path,
    progress: Progress,
    store: SubNetStore = NO_STORE,
) -> tuple[MeasuredBaseline, ...]:
    """Latency (None: failed, see reason) and accuracy per split of the `baseline` rows of front.json, each SubNet once.

    supernet: the folder of the meter's SuperNet. Measurements that the store has are copied from there. The caller holds the
    device's lease. A second call in the same folder resumes.
    """
    configs = list({row.digest: row.config for row in rows}.values())
    if not configs:
        return ()
    timed = meter.lines(store, supernet, out / MEASURED_FILE, progress)
    measured = meter.measure([meter.net.max_config, *configs], timed, progress, "measure baseline")[1:]
    found = {}
    for split, images in data.items():
        lines = accuracy_lines(store, supernet, split, images, out / EVALUATED_FILE.format(split), progress)
        found[split] = accuracies(meter.net, configs, images, lines, progress, f"evaluate baseline, {split}")
    return tuple(
        MeasuredBaseline(
            digest=measurement.key,
            measured_ms=measurement.p50_ms,
            reason=measurement.reason,
            accuracy={split: found[split][index].share for split in found},
        )
        for index, measurement in enumerate(measured)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A trained network of a baseline. weights: file of the base stage; None: the weights in the .onnx file of `model`."""

    baseline: str
    name: str
    model: ModelSettings
    weights: Path | None = None


def frozen(network: Trained, train: Dataset, folder: Path) -> SuperNet:
    """The network as a SuperNet without variables, saved in a folder; files of an earlier call are replaced.

    UserError or TailorError: the file is missing, its classes or its input differ from the data's, or the network cannot be
    read.
    """
    form = train.form
    module = create(network.model, train.classes, form, problem=train.problem)
    if isinstance(module, torch.nn.Module):
        if network.weights is not None:
            load_weights(module, network.weights)
        module.eval()
    net = tailor_ir.compile(module, form.blank(1), {})
    if fault := form.fault(net.input_shapes(net.max_config)):
        raise UserError(
            f"baseline '{network.name}'", f"takes {fault}", allowed=f"{form.line}, the data's {form.called}"
        )
    partial = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(partial, ignore_errors=True)
    net.save(partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    return net


MOST_DRAWS = 1000
"""Largest number of rounds of random draws; after these, no further different codes are assumed to exist."""


def uniform(space: Space) -> Codes:
    """Codes (n, V) in which all variables, or only all widths, share one relative level, at each resolution.

    These are width and resolution multipliers of a whole network. Source: MobileNets (arXiv:1704.04861) §3.3, 3.4.
    """
    multiplied = np.array([KINDS[variable.kind].uniform for variable in space.variables])
    resolutions = multiplied == "resolution"
    shrunk = np.concatenate([uniform_codes(space, mask) for mask in (~resolutions, multiplied == "width")])
    found = [shrunk]
    for column in np.flatnonzero(resolutions):
        for choice in range(int(space.cardinalities[column]) - 1):
            smaller = shrunk.copy()
            smaller[:, column] = choice
            found.append(smaller)
    return unique_rows(space.canonical_codes(np.concatenate(found)))


def random(space: Space, count: int, rng: np.random.Generator) -> Codes:
    """Different random codes (count, V); fewer if the space has no more."""
    wanted = min(count, space.distinct)
    found = np.zeros((0, len(space.variables)), np.int64)
    for _ in range(MOST_DRAWS):
        if len(found) >= wanted:
            break
        found = unique_rows(np.concatenate([found, space.random_codes(wanted - len(found), rng)]))
    return found


def by_macs(
    net: SuperNet, accuracy: AccuracyPredictor, settings: SearchSettings, count: int, progress: Progress
) -> Codes:
    """Codes (n, V) that the genetic search finds for `count` budgets of MACs, from the fewest to those of the best SubNet."""
    problem = Problem(net.space, mac_sums(net), accuracy)
    method = Genetic(problem, settings, np.random.default_rng(settings.seed))
    fewest, most = problem.evaluate(np.stack([method.quickest(), method.best()])).latency_ms.tolist()
    found = []
    with progress.bar("search by MACs", count) as bar:
        for macs in np.geomspace(fewest, max(fewest, most), count).tolist():
            found.append(method.winner(np.array([round_up(macs)])).code)
            bar.note(f"{macs:.3g} MACs")
            bar.advance()
    return unique_rows(np.stack(found))
