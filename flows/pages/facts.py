"""Results of stages as short texts by name: for a line of the log, and for the summary of the stage.

Each function takes what a stage returned; a stage's row in the table of stages names its functions.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flows.tracking.metrics import numbers
from tasks.pages.text import amount, count, milliseconds, percent

Row = Mapping[str, Any]
"""A result of a stage, or a part of one, as JSON."""
Facts = dict[str, str]
"""Name -> text, in the order of reading."""

MOST_FAILURES = 3
NONE = "–"


def plain(result: Row) -> Facts:
    """Every number, of a stage without a function of its own."""
    return {name: f"{value:.6g}" for name, value in numbers(result).items() if name != "version"}


def nothing(result: Row) -> Facts:
    """No facts."""
    return {}


def by_device(tell: Callable[[Row], Facts], results: Mapping[str, Row]) -> Facts:
    """Facts of one stage. results: by device; where there are several, names of facts begin with the device's."""
    if len(results) == 1:
        return tell(next(iter(results.values())))
    told = {device: tell(result) for device, result in results.items()}
    return {f"{device}: {name}": text for device, facts in told.items() for name, text in facts.items()}


def space(result: Row) -> Facts:
    """Of a SuperNet's space."""
    found = {"SubNets": count(result["distinct"]), "variables": count(result["variables"])}
    return found | {"modifications": count(result["modifications"])}


def remarks(result: Row) -> Facts:
    """The choices that were dropped when a SuperNet was compiled, and the compiler's remarks."""
    return {name: "; ".join(map(str, result[name])) for name in ("dropped", "remarks") if result[name]}


def network(result: Row) -> Facts:
    """Facts on the user's network, or a sibling."""
    found = {"test accuracy": percent(result["test_accuracy"])}
    found["validation accuracy"] = percent(result["validation_accuracy"])
    return found | ({"weights": "trained" if result["trained"] else "given"} if "trained" in result else {})


def ends(result: Row) -> Facts:
    """Of a trained SuperNet."""
    found = {
        f"{kind} SubNet, {split} accuracy": percent(result[f"{kind}_{split}_accuracy"])
        for kind in ("largest", "smallest")
        for split in ("test", "validation")
    }
    return found | ({"steps": count(result["steps"])} if "steps" in result else {})


def given(result: Row) -> Facts:
    """Facts on a given network or SuperNet, which the run does not train."""
    return network(result) if "test_accuracy" in result else ends(result)


def operators(result: Row) -> Facts:
    """Of an enumeration."""
    return {"unique operators": count(result["unique_operators"]), **space(result)}


def types(result: Row) -> Facts:
    """The number of operators of each type."""
    return {"operators by type": _counts(result["operators"])}


def latencies(result: Row) -> Facts:
    """Of a profiled device."""
    lut = result["lut"]
    counts = {"operators": lut["entries"], "with a latency": lut["ok"], "fused into others": lut["fused"]}
    counts |= {"failed": lut["failed"], "noisy": lut["noisy"]}
    counts |= {"known before": result["known"], "measured now": result["measured_now"]}
    return {name: count(value) for name, value in counts.items()}


def profiled(result: Row) -> Facts:
    """The device, its operators by type, and the first that failed."""
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


def accuracy_errors(result: Row) -> Facts:
    """Of the accuracy predictor, on SubNets that it was not made of."""
    found = {
        "SubNets checked": count(len(result["rows"])),
        "mean error": f"{result['mean_error_points']:.2f} points",
        "largest error": f"{result['max_error_points']:.2f} points",
        "Kendall's tau": _tau(result["kendall_tau"]),
    }
    interactions = result["interactions"]
    told = {} if interactions is None else {"interactions": "used" if interactions["used"] else "not used"}
    return found | told | {"images": count(result["samples"])}


def latency_errors(result: Row) -> Facts:
    """Of the latency predictor, on SubNets that it was not made of."""
    held_out, measured = result["held_out"], {row["kind"]: row["measured_ms"] for row in result["subnets"]}
    found = {
        "SubNets measured": count(len(result["subnets"])),
        "largest SubNet": milliseconds(measured["largest"]),
        "smallest SubNet": milliseconds(measured["smallest"]),
        "SubNets checked": count(held_out["n"]),
    }
    if not held_out["n"]:
        return found
    return found | {
        "median error": percent(held_out["median_relative_error"]),
        "largest error": percent(held_out["max_relative_error"]),
        "Kendall's tau": _tau(held_out["kendall_tau"]),
    }


def needs(result: Row) -> Facts:
    """Of the predictors of memory, size and energy."""
    found = {}
    for row in result["subnets"]:
        sizes = f"{amount(row['parameters'])} parameters, {amount(row['macs'])} MACs"
        found[f"{row['kind']} SubNet"] = f"{row['memory_mib']:.4g} MiB, {sizes}, {row['energy_mj']:.3g} mJ"
    return found | {"energy from": result["energy_from"]}


def front(result: Row) -> Facts:
    """Of a search."""
    rows = result["winners"]
    found = {
        "winners": count(len(rows)),
        "different ones": count(len({row["digest"] for row in rows})),
        "predicted latency": _range(_known(rows, "predicted_ms"), milliseconds),
        "predicted accuracy": _range(_known(rows, "predicted_accuracy"), percent),
    }
    measured = _known(rows, "measured_accuracy")
    return found | ({"validation accuracy": _range(measured, percent)} if measured else {})


def searched(result: Row) -> Facts:
    """Facts on a search."""
    stopped = Counter(row["stopped"] for row in result["winners"] if row.get("stopped"))
    found = {"SubNets predicted": count(result["evaluations"]), "SubNets evaluated": count(result["evaluated"])}
    found["hypervolume"] = f"{result['hypervolume']['value']:.4g}"
    return found | ({"stopped": _counts(dict(stopped.most_common()))} if stopped else {})


def refined(result: Row) -> Facts:
    """Of a refinement."""
    rows, refinement = result["winners"], result["refinement"]
    return {
        "winners": count(len(rows)),
        "candidates measured": count(refinement["measured"]),
        "failed": count(refinement["failed"]),
        "winners replaced": count(refinement["replaced"]),
        "within budget": _within(rows),
        "measured latency": _range(_known(rows, "measured_ms"), milliseconds),
        "validation accuracy": _range(_known(rows, "measured_accuracy"), percent),
    }


def exported(result: Row) -> Facts:
    """Of an export."""
    rows, files = result["winners"], [file for card in result["subnets"] for file in card["files"].values()]
    tested = [row["accuracy"]["test"] for row in rows if row["accuracy"].get("test") is not None]
    failed = sum(file["state"] == "failed" for file in files)
    return {
        "winners": count(len(rows)),
        "within budget": _within(rows),
        "measured latency": _range(_known(rows, "measured_ms"), milliseconds),
        "largest SubNet": milliseconds(result["largest"]["latency"]["p50_ms"]),
        "test accuracy": _range(tested, percent),
        "checked files": count(len(files) - failed),
        "failed files": count(failed),
    }


def failures(result: Row) -> Facts:
    """Why SubNets have no file, or no latency."""
    reasons = []
    for card in result["subnets"]:
        reasons += [f"{name}: {file['reason']}" for name, file in card["files"].items() if file["state"] == "failed"]
        if card["latency"]["p50_ms"] is None:
            reasons.append(f"not measured: {card['latency']['reason']}")
    return {"first failures": "; ".join(list(dict.fromkeys(reasons))[:MOST_FAILURES])} if reasons else {}


def baselines(result: Row) -> Facts:
    """Of the networks that winners are held against."""
    return {"networks": count(len(result["rows"])), "of": _counts(Counter(row["baseline"] for row in result["rows"]))}


def compared(result: Row) -> Facts:
    """The gain of winners over baselines."""
    found = {
        "winners": count(len(result["winners"])),
        "within budget": percent(result["within_budget"]),
        "budgets with more accuracy than every baseline": percent(result["above_every"]),
        "with no less": percent(result["not_below_any"]),
    }
    for name, row in result["baselines"].items():
        if row["accuracy_gain_points"] is not None:
            found[f"gain over {name}"] = f"{row['accuracy_gain_points']:+.1f} points"
    return found


def _tau(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def _counts(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in values.items())


def _known(rows: Iterable[Row], key: str) -> list[float]:
    return [row[key] for row in rows if row.get(key) is not None]


def _within(rows: Sequence[Row]) -> str:
    return f"{sum(bool(row.get('within_budget')) for row in rows)} of {len(rows)}"


def _range(values: Sequence[float], text: Callable[[float], str]) -> str:
    if not values:
        return NONE
    lowest, highest = text(min(values)), text(max(values))
    return lowest if lowest == highest else f"{lowest} to {highest}"
