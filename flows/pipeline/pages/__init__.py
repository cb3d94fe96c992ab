"""A run on Prefect's pages: results of stages, levels, exit policies and streams as short named texts, and rows of tables.

The texts are lines of the run's log, and summaries of stages. Each function takes the schema of a stage's result, or the
JSON if the result has no schema (`flows.pipeline.results.of` parses the JSON). The stage's row in the table of stages
names its functions. Tables have a device's winners, as far as they are known, or a dry run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from flows.pipeline.results import numbers, of
from tasks.base.pages.text import amount, count, millions, milliseconds, percent
from tasks.base.schemas.exports import Card, ExportedWinner, Exports
from tasks.base.schemas.predictions import AccuracyValidation, LatencyValidation, Resources, Uncertainty
from tasks.base.schemas.results import (
    BaseResult,
    EndsAccuracy,
    EnumerateResult,
    FinetuneResult,
    GivenFile,
    GivenSuperNet,
    JoinResult,
    NetworkAccuracy,
    StreamedNetwork,
)
from tasks.base.schemas.stored import StageResult
from tasks.base.schemas.winners import Baselines, Compared, Front, Winner
from tasks.evaluation.uncertainty import predicted, uncertain
from tasks.exits.policies import Policies
from tasks.export.operating_points import Levels
from tasks.measuring.runtime_options.settings import ChosenEngine
from tasks.report.headline import kept
from tasks.report.streams import events_text

Facts = dict[str, str]
"""Name -> text, in display order."""

MOST_FAILURES = 3
NONE = "–"
SPACE = {"SubNets": "distinct", "variables": "variables", "modifications": "modifications"}


def plain(result: StageResult) -> Facts:
    """Every number of the result, for a stage without a function of its own."""
    return {name: f"{value:.6g}" for name, value in numbers(result).items() if name != "version"}


def nothing(result: StageResult) -> Facts:
    """No facts."""
    return {}


def by_device(tell: Callable[[StageResult], Facts], results: Mapping[str, StageResult]) -> Facts:
    """Facts of one stage. results: by device; with several devices, fact names are prefixed with the device's name."""
    if len(results) == 1:
        return tell(next(iter(results.values())))
    described = {device: tell(result) for device, result in results.items()}
    return {f"{device}: {name}": text for device, facts in described.items() for name, text in facts.items()}


def named_by(score: str, facts: Facts) -> Facts:
    """Replace "accuracy" in fact names by the name of the learning problem's score."""
    return {name.replace("accuracy", score): text for name, text in facts.items()}


def space(result: StageResult) -> Facts:
    """Facts on a SuperNet's space."""
    return {name: count(result[field]) for name, field in SPACE.items()}


def remarks(result: StageResult) -> Facts:
    """The choices that were dropped during compilation of a SuperNet, and the compiler's remarks."""
    return {name: "; ".join(map(str, result[name])) for name in ("dropped", "remarks") if result[name]}


def base(result: BaseResult) -> Facts:
    """Facts on the user's network, or a sibling."""
    return network(result) | {"weights": "trained" if result.trained else "given"}


def network(result: NetworkAccuracy) -> Facts:
    """Facts on a network that no run trains."""
    return {
        "test accuracy": uncertain(result.test_accuracy, result.test_samples, result.spread),
        "validation accuracy": uncertain(result.validation_accuracy, result.validation_samples, result.spread),
    }


def trained(result: FinetuneResult) -> Facts:
    """Facts on a trained SuperNet."""
    found = ends(result) | {"strategy": result.strategy, "steps": count(result.steps)}
    return found | ({"before": result.before.line} if result.before is not None and result.before.is_worse else {})


def ends(result: EndsAccuracy) -> Facts:
    """Accuracies of a SuperNet's largest and smallest SubNet."""
    samples = {"test": result.test_samples, "validation": result.validation_samples}
    return {
        f"{end} SubNet, {split} accuracy": uncertain(
            getattr(result, f"{end}_{split}_accuracy"), samples[split], result.spread
        )
        for end in ("largest", "smallest")
        for split in samples
    }


def joined(result: JoinResult) -> Facts:
    """Facts on a SuperNet whose backbone was trained on other data."""
    return ends(result) | {"tensors of the backbone": count(result.tensors)}


def given(result: StageResult) -> Facts:
    """Facts on a given network or SuperNet that the run does not train."""
    tell = of(GivenFile, network) if "test_accuracy" in result else of(GivenSuperNet, ends)
    return tell(result)


def operators(result: EnumerateResult) -> Facts:
    """Facts on an enumeration."""
    names = {"unique operators": "unique_operators", **SPACE}
    return {name: count(getattr(result, field)) for name, field in names.items()}


def types(result: EnumerateResult) -> Facts:
    """Operator counts by type."""
    return {"operators by type": _counts(result.operators)}


def engine(result: ChosenEngine) -> Facts:
    """Facts on the choice of an engine."""
    found = {"runtime options": result.text}
    if result.gain is not None:
        found["speed-up over the defaults"] = f"{result.speed_up:.2f}"
    return found | {"choices tried": count(len(result.tried)), "choices left out": count(len(result.left_out))}


def tried_engines(result: ChosenEngine) -> Facts:
    """Every choice that was timed, with its time relative to the time without it."""
    rows = [(f"{one.option}={one.choice}", one) for one in result.tried]
    return {name: f"{one.gain.ratio:.3f}: {one.reason or 'kept'}" for name, one in rows}


def latencies(result: StageResult) -> Facts:
    """Facts on a profiled device."""
    lut = result["lut"]
    counts = {"operators": lut["entries"], "with a latency": lut["ok"], "fused into others": lut["fused"]}
    counts |= {"failed": lut["failed"], "noisy": lut["noisy"]}
    counts |= {"known before": result["known"], "measured now": result["measured_now"]}
    return {name: count(value) for name, value in counts.items()}


def profiled(result: StageResult) -> Facts:
    """The device, its operators by type and method, and the first failures."""
    device, lut = result["device"], result["lut"]
    threads = f"{device['threads']} thread{'s' if device['threads'] > 1 else ''}"
    found = {
        "device": f"{device['backend']} {device['version']}, {device['provider']}, {device['precision']}, {threads}",
        "processor": f"{device['cpu_model']}, {device['system']}",
        "median spread": percent(lut["median_spread"]),
        "with an energy": count(lut["with_energy"]),
        "operators by type": _counts(lut["operators"]),
        "operators by method": _counts(lut["methods"]),
        "store": result["store"],
    }
    reasons = [f"{row['operator']}: {row['reason']}" for row in lut["failures"][:MOST_FAILURES]]
    return found | ({"first failures": "; ".join(reasons)} if reasons else {})


def accuracy_errors(result: AccuracyValidation) -> Facts:
    """Errors of the accuracy predictor on SubNets that it was not fitted to."""
    found = {
        "SubNets checked": count(len(result.rows)),
        "mean error": f"{result.mean_error_points:.2f} points",
        "largest error": f"{result.max_error_points:.2f} points",
        "Kendall's tau": _tau(result.kendall_tau),
    }
    if result.interactions is not None:
        found["interactions"] = "used" if result.interactions.used else "not used"
    if (cost := result.int8) is not None:
        found["int8 costs"] = f"{cost.mean_points:.2f} points on average, at most {cost.most_points:.2f}"
    return found | {"images": count(result.samples)}


def latency_errors(result: LatencyValidation) -> Facts:
    """Errors of the latency predictor on SubNets that it was not fitted to."""
    held_out, measured_ms = result.held_out, {row.kind: row.measured_ms for row in result.subnets}
    found = {
        "SubNets measured": count(len(result.subnets)),
        "largest SubNet": milliseconds(measured_ms["largest"]),
        "smallest SubNet": milliseconds(measured_ms["smallest"]),
        "SubNets checked": count(held_out.n),
    }
    if not held_out.n:
        return found
    return found | {
        "median error": percent(held_out.median_relative_error),
        "largest error": percent(held_out.max_relative_error),
        "Kendall's tau": _tau(held_out.kendall_tau),
    }


def needs(result: Resources) -> Facts:
    """Facts from the predictors of memory, size and energy."""
    found = {}
    for row in result.subnets:
        sizes = f"{amount(row.parameters)} parameters, {amount(row.macs)} MACs"
        found[f"{row.kind} SubNet"] = f"{row.memory_mib:.4g} MiB, {sizes}, {row.energy_mj:.3g} mJ"
    return found | {"energy from": result.energy_from}


def front(result: Front) -> Facts:
    """Facts on the winners of a search."""
    rows = result.winners
    found = {
        "winners": count(len(rows)),
        "different ones": count(len({row.digest for row in rows})),
        "predicted latency": _range((row.predicted_ms for row in rows), milliseconds),
        "predicted accuracy": _range(
            (row.predicted_accuracy for row in rows), partial(predicted, known=result.uncertainty)
        ),
    }
    if any(row.measured_accuracy is not None for row in rows):
        found["validation accuracy"] = _measured((row.measured_accuracy for row in rows), result.uncertainty)
    return found


def searched(result: Front) -> Facts:
    """Facts on the effort and outcome of a search."""
    stopped = Counter(row.stopped for row in result.winners if row.stopped)
    found = {"SubNets predicted": count(result.evaluations), "SubNets evaluated": count(result.evaluated)}
    found["hypervolume"] = f"{result.hypervolume.value:.4g}"
    return found | ({"stopped": _counts(dict(stopped.most_common()))} if stopped else {})


def refined(result: Front) -> Facts:
    """Facts on a refinement."""
    rows, refinement = result.winners, result.refinement
    assert refinement is not None, "a refined front says how"
    return {
        "winners": count(len(rows)),
        "candidates measured": count(refinement.measured),
        "failed": count(refinement.failed),
        "winners replaced": count(refinement.replaced),
        "budgets moved": count(refinement.moved),
        "within budget": _within(row.within_budget for row in rows),
        "measured latency": _range((row.measured_ms for row in rows), milliseconds),
        "validation accuracy": _measured((row.measured_accuracy for row in rows), result.uncertainty),
    }


def exported(result: Exports) -> Facts:
    """Facts on an export."""
    samples = {split: number for card in result.subnets for split, number in card.samples.items()}
    tested = result.uncertainty.model_copy(update={"samples": samples.get("test")})
    rows, files = result.winners, [file for card in result.subnets for file in card.files.values()]
    failed = sum(file.state == "failed" for file in files)
    adapted = [card.adapted for card in result.subnets if card.adapted is not None]
    aligned = sum(one.input_deviations is not None for one in adapted)
    own = result.largest.own_choices
    return {
        "winners": count(len(rows)),
        **({"SubNets as they have adapted": count(len(adapted))} if adapted else {}),
        **({"of these with aligned images": count(aligned)} if aligned else {}),
        "within budget": _within(row.within_budget for row in rows),
        "measured latency": _range((row.measured_ms for row in rows), milliseconds),
        "largest SubNet": milliseconds(result.largest.latency.p50_ms),
        **({"largest SubNet by the runtime's own choices": milliseconds(own.p50_ms)} if own is not None else {}),
        "test accuracy": _measured((row.accuracy.get("test") for row in rows), tested),
        "checked files": count(len(files) - failed),
        "failed files": count(failed),
    }


def failures(result: Exports) -> Facts:
    """Reasons why SubNets have no file or no latency."""
    reasons = []
    for card in result.subnets:
        reasons += [f"{name}: {file.reason}" for name, file in card.files.items() if file.state == "failed"]
        if card.latency.p50_ms is None:
            reasons.append(f"not measured: {card.latency.reason}")
    return {"first failures": "; ".join(list(dict.fromkeys(reasons))[:MOST_FAILURES])} if reasons else {}


def baselines(result: Baselines) -> Facts:
    """Facts on the networks that winners are compared with."""
    return {"networks": count(len(result.rows)), "of": _counts(Counter(row.baseline for row in result.rows))}


def compared(result: Compared) -> Facts:
    """The gain of winners over baselines."""
    found = {
        "winners": count(len(result.winners)),
        "within budget": percent(result.within_budget),
        "budgets with more accuracy than every baseline": percent(result.above_every),
        "with no less": percent(result.not_below_any),
    }
    for name, row in result.baselines.items():
        if row.accuracy_gain_points is not None:
            found[f"gain over {name}"] = f"{row.accuracy_gain_points:+.1f} points"
    return found


def _tau(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def _counts(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in values.items())


def _within(are_kept: Iterable[bool | None]) -> str:
    """The number of winners within budget, out of all (None: unknown)."""
    every = list(are_kept)
    return f"{sum(map(bool, every))} of {len(every)}"


def _measured(shares: Iterable[float | None], known: Uncertainty) -> str:
    """The lowest and the highest measured accuracy, with their standard errors."""
    return _range(shares, partial(uncertain, samples=known.samples, spread=known.spread))


def _range(values: Iterable[float | None], text: Callable[[float], str]) -> str:
    """The lowest and the highest known value."""
    known = [value for value in values if value is not None]
    if not known:
        return NONE
    lowest, highest = text(min(known)), text(max(known))
    return lowest if lowest == highest else f"{lowest} to {highest}"


def levels(result: Levels) -> Facts:
    """The number of combinations in total, on the front, and kept, by format."""
    formats = Counter(row.format for row in result.rows if row.kept)
    return {
        "combinations": count(len(result.rows)),
        "on the front": count(sum(row.on_front for row in result.rows)),
        "kept": f"{sum(formats.values())} ({', '.join(f'{number} {form}' for form, number in formats.items())})",
    }


def left_out(result: Levels) -> Facts:
    """SubNets that lack a row in some format."""
    rows = result.left_out
    named = "; ".join(f"{row.digest} in {row.format}: {row.reason}" for row in rows[:MOST_FAILURES])
    return {"left out": f"{len(rows)}: {named}"} if rows else {}


def policies(result: Policies) -> Facts:
    """The effect of early exits on test images, for the SubNet whose early answers are the most accurate."""
    done = sum(row.thresholds is not None for row in result.subnets)
    found = {"SubNets with thresholds": f"{done} of {len(result.subnets)}", "held-out images": count(result.images)}
    best = result.best
    if best is None or best.tested is None:
        return found
    tested = best.tested
    return found | {
        "test accuracy": f"{percent(tested.accuracy)}, {tested.lost_points:+.2f} points lost",
        "expected latency": f"{milliseconds(tested.expected_ms)} instead of {milliseconds(tested.whole_ms)}",
        "p99": milliseconds(tested.p99_ms),
        "saved": percent(tested.saved),
    }


def without_thresholds(result: Policies) -> Facts:
    """Reasons why SubNets have no thresholds."""
    described = (result.reason, *(row.reason for row in result.subnets))
    reasons = list(dict.fromkeys(reason for reason in described if reason is not None))
    return {"without thresholds": "; ".join(reasons[:MOST_FAILURES])} if reasons else {}


def streamed(result: StreamedNetwork) -> Facts:
    """The error of each method on the whole stream."""
    errors = {f"error, {one.method}": f"{one.error_percent:.1f} %" for one in result.methods}
    return {"images": str(result.images), **errors}


def events(result: StreamedNetwork) -> Facts:
    """Events of guards, and the methods left out."""
    described = {f"events, {one.method}": events_text(one) for one in result.methods if one.events}
    return described | {f"left out, {method}": why for method, why in result.left_out.items()}


Row = Mapping[str, Any]
"""A part of a report, as JSON."""
WITHIN = {True: "yes", False: "misses"}


def front_rows(front: Front) -> list[Facts]:
    """The winners of a search, or the measured winners of a refinement."""
    return [
        _winner(
            row,
            row,
            NONE if row.within_budget is None else WITHIN[row.within_budget],
            {"validation": uncertain(row.measured_accuracy, front.uncertainty.samples, front.uncertainty.spread)},
            front.uncertainty,
        )
        for row in front.winners
    ]


def exported_rows(exports: Exports) -> list[Facts]:
    """The winners as exported and measured."""
    cards = {card.digest: card for card in exports.subnets}
    return [
        _winner(
            row,
            card := cards[row.digest],
            _kept(row.measured_ms, row.within_budget),
            {split: uncertain(share, card.samples.get(split), card.spread) for split, share in row.accuracy.items()},
            exports.uncertainty,
        )
        for row in exports.winners
    ]


def _kept(measured_ms: float | None, is_kept: bool) -> str:
    """Budget result of a winner that was to be measured."""
    return "failed" if measured_ms is None else WITHIN[is_kept]


def _winner(
    row: Winner | ExportedWinner, sizes: Winner | Card, within: str, accuracy: Mapping[str, str], known: Uncertainty
) -> Facts:
    """A row for one winner. accuracy: measured accuracy by split."""
    return {
        "budget": milliseconds(row.budget_ms),
        "predicted": milliseconds(row.predicted_ms),
        "measured": milliseconds(row.measured_ms),
        "within budget": within,
        "predicted accuracy": predicted(row.predicted_accuracy, known),
        "validation accuracy": accuracy.get("validation", NONE),
        "test accuracy": accuracy.get("test", NONE),
        "MACs": millions(sizes.macs),
        "parameters": millions(sizes.parameters),
        "SubNet": row.digest,
    }


def plan_rows(plan: Mapping[str, Row]) -> list[Facts]:
    """A dry run of profiling: a row for each device."""
    counts = ("operators", "known", "known_noisy", "known_failed", "to_measure")
    return [
        {
            "device": device,
            **{name.replace("_", " "): count(dict[str, Any](row)[name]) for name in counts},
            "device time": f"{row['estimated_s']:.1f} s",
            "estimated from": row["estimated_from"],
        }
        for device, row in plan.items()
    ]


def report_rows(device: Row) -> list[Facts]:
    """The base model, and the winners on one device of a report that keep their budget."""
    rows = [(device["base"].get("row", "base model"), NONE, device["base"])]
    for row in kept(device):
        rows.append((milliseconds(row["budget_ms"]), _kept(row["measured_ms"], row["within_budget"]), row))
    return [
        {
            "budget": budget,
            "predicted": milliseconds(row.get("predicted_ms")),
            "measured": milliseconds(row["measured_ms"]),
            "within budget": within,
            "test accuracy": uncertain(row["accuracy"], device.get("test_samples"), row.get("spread", 1.0)),
            "MACs": millions(row["macs"]),
            "parameters": millions(row["parameters"]),
            "resolution": str(row["resolution"]),
        }
        for budget, within, row in rows
    ]
