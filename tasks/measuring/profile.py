"""Stage "profile": measure every unique operator once on one device, into its look-up table; a dry run states the time.

Operators are measured in situ, inside a few whole SubNets (`tasks.measuring.in_network`), or alone, each as its own
model. Operators without a result from SubNets are measured alone, and so are all operators if their energy is
requested. The table is part of a store that networks and runs share. Its entries are not measured again, whichever
network they were measured for, so a killed run continues; the stage's own folder gets a copy of this network's entries.
While a remote device measures one batch, the next is made and converted to the device's format. A dry run counts known
operators of one device and operators to measure.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

import tailor_ir
from profiling_agents.client import ModelJob
from profiling_agents.messages import Capabilities, Format, Measurement, Precision
from tailor_ir import OperatorFeature
from tasks.base.artifacts import append_line, read_lines
from tasks.base.progress import Bar, Progress
from tasks.base.schemas.placed import IMPLEMENTATIONS_FILE, LUT_FOLDER, ChosenImplementations
from tasks.evaluation.conversion import ConversionError, ConversionLimits
from tasks.evaluation.executorch.programs import operator_jobs
from tasks.evaluation.ncnn.conversion import convert_operators
from tasks.evaluation.quantise.qdq import int8_operator
from tasks.measuring import in_network as insitu
from tasks.measuring.fleet import Meter
from tasks.measuring.jobs import ahead, ncnn_job, onnx_job, pieces
from tasks.measuring.lut import DeviceKey, Entry, Lut, LutStore, json_text, now
from tasks.measuring.operators import covering_codes, read_operators
from tasks.measuring.settings import HANDLING_MS
from tasks.measuring.settings import ProfileSettings as Settings

STORE_FOLDER = "luts"
REMEASURE_FILE = "remeasure.jsonl"
SUBNETS_FILE = "subnets.jsonl"

MEASURED = {"state", "reason", "p50_ms", "p90_ms", "spread", "n", "noisy", "energy_mj"}
"""The fields that an entry copies from a measurement."""

FeaturesByDigest = Mapping[str, OperatorFeature]


def device_key(capabilities: Capabilities) -> DeviceKey:
    """The key of this device's entries."""
    return DeviceKey(
        backend=capabilities.backend,
        build=capabilities.build,
        precision=capabilities.precision,
        threads=capabilities.threads,
        fingerprint=capabilities.fingerprint,
        description=f"{capabilities.backend} {capabilities.version}, {capabilities.cpu_model}",
    )


def open_table(settings: Settings, store: Path, capabilities: Capabilities) -> Lut:
    """The entries of this device's operators under these settings."""
    methods = settings.methods
    measured_with = None if settings.other_settings else {settings.measured_with(method) for method in methods}
    return LutStore(store).open(device_key(capabilities), methods=methods, settings=measured_with)


def unknown(
    settings: Settings, lut: Lut, operators: Mapping[str, OperatorFeature], since: str = ""
) -> FeaturesByDigest:
    """The operators (by digest) that remain to be measured by the method of the settings."""
    return {
        digest: one
        for digest, one in operators.items()
        if settings.measures(lut.of_method(digest, settings.method), since)
    }


def unknown_alone(
    settings: Settings, lut: Lut, operators: FeaturesByDigest, capabilities: Capabilities, since: str = ""
) -> FeaturesByDigest:
    """The operators to be measured alone: because no SubNet gave their time, or for their energy."""
    in_situ = settings.method == "in situ" and not settings.meters(capabilities)

    def given(digest: str) -> bool:
        return in_situ and (entry := lut.of_method(digest, "in situ")) is not None and entry.state != "failed"

    return {
        digest: one
        for digest, one in operators.items()
        if not given(digest) and settings.measures(lut.of_method(digest, "alone"), since)
    }


def run(
    settings: Settings,
    operators_folder: Path,
    meter: Meter,
    out_folder: Path,
    progress: Progress,
    supernet: Path | None = None,
    batch: int = 1,
) -> dict[str, Any]:
    """Measure operators that are not in the store; copy every operator of `operators_folder` from it to `out_folder/lut`.

    supernet: the folder of the SuperNet with these operators at this batch, for measuring in situ. Returns the summary. The
    caller holds the lease of a single device. An operator that fails is an entry with its reason. AgentError if the device is
    gone; call again.
    """
    operators = read_operators(operators_folder)
    capabilities = meter.capabilities()
    store = settings.store or out_folder / STORE_FOLDER
    for line in LutStore(store).mend(device_key(capabilities)):
        progress.say(line)
    lut = open_table(settings, store, capabilities)
    since = _since(out_folder / REMEASURE_FILE) if settings.remeasure else ""
    todo = unknown(settings, lut, operators, since)
    start = time.perf_counter()
    implementations: dict[str, Any] | None = None
    if settings.method == "in situ" and todo:
        assert supernet is not None
        net = tailor_ir.load(supernet, batch=batch)
        text, file = settings.measured_with("in situ"), out_folder / SUBNETS_FILE
        per_operator = settings.subnets_per_operator
        bench = insitu.Bench(meter, settings.subnet, text, settings.limits, file, progress, per_operator)
        entries, implementations = insitu.entries(net, todo, bench)
        lut.append(entries)
    alone = unknown_alone(settings, lut, operators, capabilities, since)
    if alone:
        with progress.bar("profile", total=len(alone)) as bar:
            fill(settings, lut, alone, capabilities, meter, bar)
    wall_s, measured = time.perf_counter() - start, len(todo.keys() | alone.keys())
    own = _snapshot(lut, operators, out_folder)
    return {
        "device": capabilities.model_dump(mode="json"),
        "store": str(lut.folder),
        "known": len(operators) - measured,
        "measured_now": measured,
        "not_valid": list(lut.invalid),  # invalid in the store, and measured again now
        "wall_s": round(wall_s, 3),
        "operators_per_s": round(measured / wall_s, 2) if measured else None,
        "implementations": implementations,
        "lut": own.summary(),
    }


def _snapshot(lut: Lut, operators: FeaturesByDigest, out_folder: Path) -> Lut:
    """The table of this network's operators in the stage's folder, with the chosen implementations."""
    own = lut.snapshot(out_folder / LUT_FOLDER, operators)
    own.require(operators.values())
    ChosenImplementations(operators=own.chosen(operators)).write(out_folder / IMPLEMENTATIONS_FILE)
    return own


def _since(file: Path) -> str:
    """The time when remeasuring began in this folder; a killed run keeps it."""
    if not read_lines(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        append_line(file, {"since": now()})
    return str(read_lines(file)[0]["since"])


def fill(
    settings: Settings,
    lut: Lut,
    operators: Mapping[str, OperatorFeature],
    capabilities: Capabilities,
    meter: Meter,
    bar: Bar,
) -> None:
    """Measure `operators` (by digest) and append them to the table at least every `flush_s`."""
    waiting: list[Entry] = []
    flushed_s = time.monotonic()

    def add(measurement: Measurement, cost_ms: float | None = None) -> None:
        nonlocal flushed_s
        waiting.append(entry_alone(operators[measurement.key], measurement, settings, cost_ms))
        if time.monotonic() - flushed_s >= settings.flush_s:
            lut.append(waiting)
            waiting.clear()
            flushed_s = time.monotonic()
        bar.advance()

    try:
        for jobs, failures in ahead(
            pieces(list(operators.values()), settings.batch_operators),
            lambda batch: operator_models(batch, capabilities.formats, settings.limits, capabilities.precision),
            capabilities,
        ):
            for failure in failures:
                add(failure)
            last_s = time.perf_counter()
            for measurement in meter.measure(jobs, settings.measure) if jobs else ():
                cost_ms, last_s = 1e3 * (time.perf_counter() - last_s), time.perf_counter()
                add(measurement, cost_ms)
    finally:
        lut.append(waiting)


def entry_alone(
    feature: OperatorFeature, measurement: Measurement, settings: Settings, cost_ms: float | None = None
) -> Entry:
    """The entry of an operator that was measured alone."""
    return Entry(
        digest=feature.digest,
        operator=feature.operator,
        feature=json_text(feature.to_json()),
        settings=settings.measured_with("alone"),
        cache=settings.measure.cache,
        cost_ms=cost_ms,
        measured_at=now(),
        **measurement.model_dump(include=MEASURED),
    )


def operator_models(
    features: Sequence[OperatorFeature], formats: Sequence[Format], limits: ConversionLimits, precision: Precision
) -> tuple[list[ModelJob], list[Measurement]]:
    """Models of these operators for the device, and a failure for each operator without a model."""
    outcomes: list[ModelJob | ConversionError]
    if "executorch" in formats:
        outcomes = list(operator_jobs(features, limits).values())
    elif "onnx" in formats:
        outcomes = [_onnx_job(feature, precision) for feature in features]
    else:
        models = [tailor_ir.operator_model(feature) for feature in features]
        outcomes = [
            outcome if isinstance(outcome, ConversionError) else ncnn_job(feature.digest, model, outcome)
            for feature, model, outcome in zip(features, models, convert_operators(models, limits), strict=True)
        ]
    failures = [
        Measurement.failed(feature.digest, str(outcome))
        for feature, outcome in zip(features, outcomes, strict=True)
        if isinstance(outcome, ConversionError)
    ]
    return [outcome for outcome in outcomes if isinstance(outcome, ModelJob)], failures


def _onnx_job(feature: OperatorFeature, precision: Precision) -> ModelJob | ConversionError:
    model = tailor_ir.operator_model(feature)
    try:
        return onnx_job(feature.digest, int8_operator(model) if precision == "int8" else model)
    except ConversionError as error:
        return error


TRIALS = 1.5
"""Trials of a SubNet on a runtime with several implementations; measured: 1.2 to 1.5 (`benchmarks.kernels`)."""


def plan(
    settings: Settings, operators_folder: Path, capabilities: Capabilities, supernet: Path | None = None, batch: int = 1
) -> dict[str, Any]:
    """The plan of `tasks.measuring.profile.run` for these operators on this device; nothing is measured or written.

    subnets: SubNets to measure in situ; None for method "alone". known_noisy, known_failed: among the known operators.
    estimated_s: device time [s]. For operators measured alone it comes from earlier costs on this device under the same
    settings; otherwise, and for SubNets, from the settings (warm-up, time cap, layers, energy). Conversion is not included.
    Operators timed in SubNets are measured alone, too, if their energy is requested.
    """
    operators = read_operators(operators_folder)
    lut = open_table(settings, settings.store or operators_folder / STORE_FOLDER, capabilities)
    known = [entry for digest in operators if (entry := lut.get(digest))]
    missing = unknown(settings, lut, operators)
    metered = unknown_alone(settings, lut, operators, capabilities) if settings.meters(capabilities) else {}
    todo = [feature.operator for feature in {**missing, **metered}.values()]
    subnets = _subnets(settings, missing, supernet, batch) if settings.method == "in situ" else None
    alone = [feature.operator for feature in (missing if subnets is None else metered).values()]
    own, subnet = settings.measure, settings.subnet
    costs_ms: dict[str, list[float]] = {}
    for entry in lut.entries():
        if entry.cost_ms is not None:
            costs_ms.setdefault(entry.operator, []).append(entry.cost_ms)
    means_ms = {operator: fmean(found) for operator, found in costs_ms.items()}
    guess_ms = HANDLING_MS + own.warmup_ms + own.time_cap_ms + own.energy_ms
    other_ms = fmean(chain.from_iterable(costs_ms.values())) if costs_ms else guess_ms
    trials = (subnets or 0) * (TRIALS if "ncnn" in capabilities.formats else 1.0)
    subnet_ms = subnet.warmup_ms + subnet.time_cap_ms + subnet.layers_ms + subnet.energy_ms
    estimated_ms = sum(means_ms.get(operator, other_ms) for operator in alone) + trials * subnet_ms
    return {
        "description": lut.device.description,
        "store": str(lut.folder),
        "operators": len(operators),
        "known": len(known),
        "known_noisy": sum(entry.noisy for entry in known),
        "known_failed": sum(entry.state == "failed" for entry in known),
        "to_measure": len(todo),
        "to_measure_by_operator": dict(Counter(todo).most_common()),
        "subnets": subnets,
        "estimated_s": round(estimated_ms / 1e3, 3),
        "estimated_from": "settings" if not costs_ms or subnets is not None else "earlier measurements",
    }


def _subnets(settings: Settings, missing: FeaturesByDigest, supernet: Path | None, batch: int) -> int:
    """The number of SubNets that together contain all of the operators."""
    assert supernet is not None
    if not missing:
        return 0
    net, rng = tailor_ir.load(supernet, batch=batch), np.random.default_rng(settings.subnet.seed)
    return len(covering_codes(net, set(missing.values()), rng, settings.subnets_per_operator))
