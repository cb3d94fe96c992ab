"""Questions to a finished search: one SubNet by a rule, or two SubNets side by side, for each device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import tailor_ir
from flows import stages
from flows.config import AdaptConfig, CommonConfig, RunConfig
from flows.run import Output, Run
from tasks.artifacts import RESULT_FILE, read_json
from tasks.choose import Pick, Question, Rule, pick
from tasks.choose.compare import architecture, side_by_side
from tasks.choose.pick import resolve
from tasks.choose.rules import ROUNDS, between, choose
from tasks.layers import Layers
from tasks.lut import Lut
from tasks.predict.accuracy import AccuracyPredictor
from tasks.predict.latency import LatencyPredictor
from tasks.predict.sensitivity import SENSITIVITIES_FILE
from tasks.predict.validate import LATENCY_FILE, VALIDATION_FILE
from tasks.profile import LUT_FOLDER
from tasks.search.feasible import LATENCY, Cost
from tasks.search.problem import Problem
from tasks.search.results import rows_of

Row = dict[str, Any]
Config = RunConfig | AdaptConfig
AnyConfig = TypeVar("AnyConfig", bound=CommonConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """What a question is asked about: finished stages, by device where they are of devices. `base`: folder, if there is one."""

    trained: Path
    accuracy: Output
    profiled: Mapping[str, Output]
    latency: Mapping[str, Output]
    needs: Mapping[str, Output]
    found: Mapping[str, Output]
    base: Path | None


def config_for(config: RunConfig, question: Question) -> RunConfig:
    """The config whose search a question needs: a rule's budget is the one that is searched."""
    if question.rule and question.rule.kind == "budget_ms":
        return _with_budgets(config, [question.rule.value])
    return config


def answer(run: Run, config: Config, question: Question, searched: Searched) -> Row:
    """`chosen` or `compared`: a row for each device. UserError when there is no such SubNet."""
    if question.rule:
        return {"chosen": [_chosen(run, config, question.rule, name, searched) for name in config.device]}
    assert question.pair is not None
    picks = pick(question.pair[0]), pick(question.pair[1])
    return {"compared": [_compared(run, config, picks, name, searched) for name in config.device]}


def _chosen(run: Run, config: Config, rule: Rule, device: str, searched: Searched) -> Row:
    found = searched.found[device].result
    base = _base(searched.base, found)
    if rule.kind == "accuracy_share":
        found = _nearer(run, config, rule, device, searched, base["accuracy"])
    row = choose(rule, found, base["accuracy"])
    layers = _layers(config, device, searched)
    return {
        "device": device,
        "rule": {"kind": rule.kind, "value": rule.value, "text": rule.text},
        "base": base,
        "largest_ms": found["largest"]["predicted_ms"],
        **row,
        "architecture": architecture(layers, row["config"]),
    }


def _base(folder: Path | None, found: Row) -> Row:
    """Whose accuracy on the validation split shares are of: the base model, or the largest SubNet where there is none."""
    known = read_json(folder / RESULT_FILE).get("validation_accuracy") if folder else None
    if known is not None:
        return {"name": "base model", "accuracy": known}
    return {"name": "largest SubNet", "accuracy": found["largest"]["predicted_accuracy"]}


def _nearer(run: Run, config: Config, rule: Rule, device: str, searched: Searched, accuracy: float) -> Row:
    """`front.json` with the winners of further budgets, ever closer around the cheapest SubNet that is accurate enough."""
    found = searched.found[device].result
    rows = list(found["winners"])
    for _ in range(ROUNDS):
        budgets_ms = between(rule, rows, accuracy)
        if not budgets_ms:
            break
        rows += _search(run, config, device, searched, budgets_ms)["winners"]
    return {**found, "winners": rows}


def _search(run: Run, config: Config, device: str, searched: Searched, budgets_ms: Sequence[float]) -> Row:
    further = _with_budgets(config, budgets_ms)
    found = stages.search(run, further, [device], searched.trained, searched.accuracy, searched.latency, searched.needs)
    return found[device].result


def _with_budgets(config: AnyConfig, budgets_ms: Sequence[float]) -> AnyConfig:
    search = config.search.model_copy(update={"budgets_ms": tuple(budgets_ms), "device_budgets_ms": None})
    return config.model_copy(update={"search": search})


def _compared(run: Run, config: Config, picks: tuple[Pick, Pick], device: str, searched: Searched) -> Row:
    found = searched.found[device].result
    budgets_ms = sorted({each.budget_ms for each in picks if each.kind == "budget"})
    if budgets_ms:
        winners = _search(run, config, device, searched, budgets_ms)["winners"]
        found = {**found, "winners": [*winners, *found["winners"]]}
    known = _known(found, searched, device)
    rows = _described(searched, device, [resolve(each, found, known, device)["config"] for each in picks])
    layers = _layers(config, device, searched)
    sides = [
        {"word": each.word, **row, "elsewhere": layers.elsewhere(row["config"])}
        for each, row in zip(picks, rows, strict=True)
    ]
    first, second = sides
    return {
        "device": device,
        "first": first,
        "second": second,
        "offset_ms": layers.offset_ms,
        "layers": side_by_side(layers, first["config"], second["config"]),
    }


def _described(searched: Searched, device: str, configs: Sequence[Mapping[str, Any]]) -> list[Row]:
    """What SubNets are, and what is predicted for them on this device."""
    net = tailor_ir.load(searched.trained)
    latency = LatencyPredictor.load(searched.latency[device].folder / LATENCY_FILE)
    accuracy = AccuracyPredictor.load(searched.accuracy.folder / SENSITIVITIES_FILE)
    codes = net.space.canonical_codes(net.space.encode(configs))
    return rows_of(net, Problem(net.space, latency, accuracy), [Cost(LATENCY, device, latency)], codes)


def _known(found: Row, searched: Searched, device: str) -> list[Row]:
    """SubNets that have a digest to ask for: of the searches, and those that the latency predictor was checked on."""
    checked = read_json(searched.latency[device].folder / VALIDATION_FILE)["subnets"]
    others = (row for output in searched.found.values() for row in output.result["winners"])
    return [*found["winners"], found["fastest"], found["largest"], *found["baseline"], *checked, *others]


def _layers(config: Config, device: str, searched: Searched) -> Layers:
    net = tailor_ir.load(searched.trained, batch=config.device[device].batch)
    lut = Lut.open(searched.profiled[device].folder / LUT_FOLDER)
    correction = LatencyPredictor.load(searched.latency[device].folder / LATENCY_FILE).correction
    return Layers(net, lut, correction)
