"""CrowdHMTware's profiler (eq. 1 and 2) beside the tables' own sums: who ranks SubNets as the device does.

    python -m benchmarks.profiler_equations [--devices ncnn …] [--subnets 100] [--fit 16] [--rounds 3] [--cache-kib 1024]
                                            [--work DIR] [--json FILE] [--markdown] [NETWORK …]

NETWORK: as in `benchmarks.latency`, whose DIR this goes on from: what was profiled and timed there is not measured again. The
equations add up over layers l with C_l multiply-accumulates and M_l elements of parameters and activations:

    latency:  λ1 · δ_l · C_l + ε · λ2 · M_l + (1 − ε) · λ3 · M_l, with the arithmetic intensity δ_l = C_l / M_l
    energy:   σ1 · C_l + ε · σ2 · M_l + (1 − ε) · σ3 · M_l

ε is the cache-hit rate. By one ε for all layers λ2 and λ3 would be one coefficient; so a layer hits with the share of its M_l
that a cache of `--cache-kib` holds. Coefficients are fitted once by non-negative least squares of relative errors: "by
operators" on the device's table, "by SubNets" on the timed SubNets that the tables' own correction is fitted on, too. "MACs" is
one coefficient for C_l. σ of "published" have the ratios 1 : 6 : 200 of the article, with one scale. Errors and Kendall's tau
are of held-out SubNets; "scaled" is the median error after the best single factor, as the article promises a ranking alone.
Source: CrowdHMTware, eq. 1 and 2 in §III-D.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls

import tailor_ir
from benchmarks.bars import Terminal
from benchmarks.profiled import add_options, each_network, predict_settings, profiled
from benchmarks.supernets import SUPERNET_FOLDER
from benchmarks.tables import show
from profiling_agents.client import AgentClient
from solvers.tables import Values
from tailor_ir import OperatorFeature, SuperNet
from tasks.base.schemas.predictions import CheckedLatency, LatencyValidation
from tasks.measuring.lut import Lut
from tasks.measuring.profile import LUT_FOLDER
from tasks.prediction import latency
from tasks.prediction.latency import errors
from tasks.prediction.settings import Settings as PredictSettings

NETWORKS = ("mobilenetv2", "resnet50", "mobilenetv3")
ELEMENT_BYTES = 4
PUBLISHED = np.array([1.0, 6.0, 200.0])
"""Ratios of σ1, σ2 and σ3 on a CPU."""
FEWEST = 8
"""SubNets with an energy, below which energies are not compared."""


def layer_terms(feature: OperatorFeature, cache_bytes: int) -> Values:
    """C, δ · C, ε · M and (1 − ε) · M of one layer (4,)."""
    shapes = (*feature.input_shapes, *feature.output_shapes)
    elements = feature.parameters + sum(int(np.prod(shape)) for shape in shapes)
    hit_rate = min(1.0, cache_bytes / (ELEMENT_BYTES * elements))
    intensity = feature.macs / elements
    macs = float(feature.macs)
    return np.array([macs, intensity * macs, hit_rate * elements, (1 - hit_rate) * elements])


COLUMNS_OF: Mapping[str, list[int]] = {"MACs": [0], "latency": [1, 2, 3], "energy": [0, 2, 3]}
"""The terms of an equation among those of `layer_terms`."""


def fitted(terms_R4: Values, measured_R: Values, equation: str) -> Values:
    """Coefficients (4,) from 0 on with the least squares of relative errors; those that the equation lacks are 0."""
    columns = COLUMNS_OF[equation]
    chosen = terms_R4[:, columns] / measured_R[:, None]
    scale = np.where(chosen.max(0) > 0, chosen.max(0), 1.0)
    found = np.zeros(terms_R4.shape[1])
    found[columns] = nnls(chosen / scale, np.ones(len(measured_R)))[0] / scale
    return found


class SubNetTerms:
    """Terms of layers and of whole SubNets of one network, and what the device's table says of its operators."""

    def __init__(self, net: SuperNet, lut: Lut, cache_bytes: int) -> None:
        self.net, self.lut, self.cache_bytes = net, lut, cache_bytes

    def of_subnets(self, rows: Sequence[CheckedLatency]) -> Values:
        """Sums over the layers of SubNets (R, 4)."""
        return np.array([self._sum(row) for row in rows])

    def of_operators(self) -> tuple[Values, Values]:
        """Terms (O, 4) and latencies (O,) [ms] of the operators whose latency the table has."""
        known = [
            (layer_terms(feature, self.cache_bytes), entry.p50_ms)
            for feature in self.net.unique_operators()
            if (entry := self.lut.get(feature.digest)) is not None and entry.p50_ms
        ]
        terms, latency_ms = zip(*known, strict=True)
        return np.array(terms), np.array(latency_ms)

    def _sum(self, row: CheckedLatency) -> Values:
        layers = [layer_terms(feature, self.cache_bytes) for feature in self.net.operators(dict(row.config))]
        total: Values = np.sum(layers, axis=0)
        return total


def compare_latencies(terms: SubNetTerms, rows: Sequence[CheckedLatency]) -> list[dict[str, Any]]:
    """Of each method its errors on SubNets that no fit has seen."""
    fit, held_out = ([row for row in rows if row.used_for == use] for use in ("fit", "held out"))
    fit_R4, held_R4 = terms.of_subnets(fit), terms.of_subnets(held_out)
    fit_ms, measured_ms = (np.array([row.measured_ms for row in part]) for part in (fit, held_out))
    operators = terms.of_operators()
    predicted = {
        "tables": np.array([row.predicted_ms for row in held_out]),
        "eq. 2 by operators": held_R4 @ fitted(*operators, "latency"),
        "eq. 2 by SubNets": held_R4 @ fitted(fit_R4, fit_ms, "latency"),
        "MACs by SubNets": held_R4 @ fitted(fit_R4, fit_ms, "MACs"),
    }
    return [{"method": name, **_judged(values, measured_ms)} for name, values in predicted.items()]


def compare_energies(
    terms: SubNetTerms, rows: Sequence[CheckedLatency], tables_mj: Mapping[str, float]
) -> list[dict[str, Any]]:
    """The same for energies, where the device's sensors told those of enough SubNets. tables_mj: by the digest of SubNets."""
    known = [row for row in rows if row.energy_mj]
    fit, held_out = ([row for row in known if row.used_for == use] for use in ("fit", "held out"))
    if min(len(fit), len(held_out)) < FEWEST:
        return []
    fit_R4, held_R4 = terms.of_subnets(fit), terms.of_subnets(held_out)
    fit_mj, measured_mj = (np.array([row.energy_mj for row in part]) for part in (fit, held_out))
    published = np.zeros(4)
    published[COLUMNS_OF["energy"]] = PUBLISHED
    scale = float(np.median(fit_mj / (fit_R4 @ published)))
    predicted = {
        "tables": np.array([tables_mj[row.digest] for row in held_out]),
        "eq. 1 published": held_R4 @ published * scale,
        "eq. 1 by SubNets": held_R4 @ fitted(fit_R4, fit_mj, "energy"),
        "MACs by SubNets": held_R4 @ fitted(fit_R4, fit_mj, "MACs"),
    }
    return [{"method": name, **_judged(values, measured_mj)} for name, values in predicted.items()]


def _judged(predicted: Values, measured: Values) -> dict[str, Any]:
    scaled = predicted * float(np.median(measured / predicted))
    return {**errors(predicted, measured).to_json(), "scaled_error": errors(scaled, measured).median_relative_error}


def measure(
    name: str, device: str, client: AgentClient, predict: PredictSettings, work: Path, cache_bytes: int
) -> list[dict[str, Any]]:
    """The rows of one network on one device."""
    own, _ = profiled(name, device, client, work)
    supernet = own.parent / SUPERNET_FOLDER
    latency.run(predict, supernet, own, client, own, Terminal())
    rows = LatencyValidation.read(own / latency.LATENCY_VALIDATION_FILE).subnets
    lut = Lut.open(own / LUT_FOLDER)
    terms = SubNetTerms(tailor_ir.load(supernet), lut, cache_bytes)
    found = [{"quantity": "latency", **row} for row in compare_latencies(terms, rows)]
    known_mj = lut.energies_mj()
    tables_mj = {
        row.digest: sum(known_mj.get(one.digest, 0.0) for one in terms.net.operators(dict(row.config))) for row in rows
    }
    found += [{"quantity": "energy", **row} for row in compare_energies(terms, rows, tables_mj)]
    return [{"network": name, "device": device, **row} for row in found]


HEADS = {
    "network": "network",
    "device": "device",
    "quantity": "quantity",
    "method": "method",
    "n": "held out",
    "kendall_tau": "Kendall's tau",
    "median_relative_error": "median error",
    "scaled_error": "scaled",
    "within_10_percent": "within ±10 %",
}


def _cell(name: str, value: Any) -> str:
    if name == "kendall_tau":
        return "–" if value is None else f"{value:.3f}"
    return f"{value:.1%}" if isinstance(value, float) else str(value)


def _show(rows: Sequence[Mapping[str, Any]], markdown: bool) -> None:
    show(list(HEADS.values()), [[_cell(name, row[name]) for name in HEADS] for row in rows], markdown=markdown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache-kib", type=int, default=1024, help="the cache whose hits the equations count (1024)")
    add_options(parser, NETWORKS, subnets=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    predict, rows = predict_settings(options), list[dict[str, Any]]()
    for name, device, client, work in each_network(options):
        rows += measure(name, device, client, predict, work, 1024 * options.cache_kib)
        _show(rows[-4:], markdown=False)
    _show(rows, options.markdown)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
