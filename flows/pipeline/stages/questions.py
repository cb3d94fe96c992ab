"""Questions to a finished search, for each device: one SubNet by a rule, two side by side, or files of given SubNets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import tailor_ir
from flows.config import FlowConfig
from flows.pipeline.run import Run
from flows.pipeline.stages.spec import ALONE, Context, Outputs
from flows.pipeline.stages.walk import work
from flows.pipeline.stages.winners import EXPORT, SEARCH, readable_exports
from importing import later_names
from tasks.base.artifacts import RESULT_FILE
from tasks.base.schemas.placed import LUT_FOLDER, ChosenSubNet
from tasks.base.schemas.predictions import LATENCY_FILE, LATENCY_VALIDATION_FILE, LatencyValidation
from tasks.base.schemas.results import BaseResult
from tasks.base.schemas.stored import Named
from tasks.base.schemas.winners import FRONT_FILE, Front, Winner
from tasks.evaluation.uncertainty import indistinct
from tasks.search.choose import ROUNDS, Pick, Question, WinnerRule, between, choose, pick, resolve

if TYPE_CHECKING:
    from tasks.measuring.lut import Lut
    from tasks.prediction.accuracy import AccuracyPredictor
    from tasks.prediction.latency import LatencyPredictor
    from tasks.prediction.layers import Layers
    from tasks.search.feasibility import Cost
    from tasks.search.problem import Problem
    from tasks.search.stage import rows_of
    from tasks.search.terminal import architecture, side_by_side
else:
    globals().update(later_names(__file__))

Row = dict[str, Any]


class ComparedAccuracy(TypedDict):
    """The network whose validation accuracy is the reference for shares. samples: as in `Uncertainty`."""

    name: str
    accuracy: float
    samples: int | None


class Searched:
    """A finished search on one device, with the stages that it read."""

    def __init__(self, run: Run, config: FlowConfig, device: str, outputs: Outputs) -> None:
        self._run, self._config, self._outputs = run, config, outputs
        at = Context(run, config, SEARCH, device, outputs)
        self.device, self.trained = device, at.trained
        self.latency, self.accuracy = at.output("latency").folder, at.sensitivities(device)
        self.front = Front.read(outputs["search"][device].folder / FRONT_FILE)
        self.base = BaseResult.read(outputs["base"][ALONE].folder / RESULT_FILE) if "base" in outputs else None

    def further(self, budgets_ms: Sequence[float]) -> tuple[Winner, ...]:
        """The winners for other budgets."""
        config = self._config.with_budgets(budgets_ms)
        found = work(SEARCH, self._run, config, self._outputs, [self.device])
        return Front.read(found[self.device].folder / FRONT_FILE).winners

    def known(self) -> list[Named]:
        """SubNets that can be asked for by digest: those of all searches, and those that checked the latency predictor."""
        front, checked = self.front, LatencyValidation.read(self.latency / LATENCY_VALIDATION_FILE).subnets
        fronts = (Front.read(output.folder / FRONT_FILE) for output in self._outputs["search"].values())
        others = (row for one in fronts for row in one.winners)
        return [*front.winners, front.fastest, front.largest, *front.baseline, *checked, *others]

    def layers(self) -> Layers:
        """The layers of SubNets, with their latencies on the device."""
        net = tailor_ir.load(self.trained, batch=self._config.device[self.device].batch)
        lut = Lut.open(self._outputs["profile"][self.device].folder / LUT_FOLDER)
        return Layers(net, lut, LatencyPredictor.load(self.latency / LATENCY_FILE).correction)

    def described(self, configs: Sequence[Mapping[str, Any]]) -> list[Row]:
        """The SubNets with their predictions for the device."""
        net = tailor_ir.load(self.trained)
        latency = LatencyPredictor.load(self.latency / LATENCY_FILE)
        from tasks.search.feasibility import LATENCY  # here because it imports torch

        problem = Problem(net.space, latency, AccuracyPredictor.load(self.accuracy))
        codes = net.space.canonical_codes(net.space.encode(configs))  # raises for configs of other spaces
        return rows_of(net, problem, [Cost(LATENCY, self.device, latency)], codes)


def answer(run: Run, config: FlowConfig, question: Question, outputs: Outputs) -> Row:
    """`chosen` or `compared`: a row for each device; or the exported files. UserError if there is no such SubNet."""
    if question.files:
        return _exported(run, config, question.files, outputs)
    searches = [Searched(run, config, name, outputs) for name in config.device]
    if question.rule:
        return {"chosen": [_chosen(question.rule, one) for one in searches]}
    assert question.pair is not None
    picks = pick(question.pair[0]), pick(question.pair[1])
    return {"compared": [_compared(picks, one) for one in searches]}


def _exported(run: Run, config: FlowConfig, files: Sequence[str], outputs: Outputs) -> Row:
    """Export the SubNets of files instead of the winners, each on its device."""
    chosen = [ChosenSubNet.read(Path(file)) for file in files]
    searches = dict(outputs["search"])
    for device in config.device:
        searched = Searched(run, config, device, outputs)
        subnets = tuple(one.subnet for one in chosen if one.device == device)
        searched.described([subnet.config for subnet in subnets])
        folder = run.folder / "chosen" / device
        folder.mkdir(parents=True, exist_ok=True)
        digests = tuple(subnet.digest for subnet in subnets)
        given = {"winners": subnets, "front": digests, "baseline": ()}
        searched.front.model_copy(update=given).write(folder / FRONT_FILE)
        searches[device] = replace(searches[device], folder=folder)
    export = config.export.model_copy(update={"replacements": 0, "keep_winners": True})
    as_chosen = config.model_copy(update={"export": export})
    exported = work(EXPORT, run, as_chosen, {**outputs, "search": searches})
    return {**run.results(*exported.values()), **readable_exports(config, {"export": exported})}


def _chosen(rule: WinnerRule, searched: Searched) -> Row:
    base = _base(searched)
    winners = searched.front.winners
    for _ in range(ROUNDS if rule.kind == "accuracy_share" else 0):
        # further budgets close in on the cheapest SubNet with sufficient accuracy
        if not (budgets_ms := between(rule, winners, base["accuracy"])):
            break
        winners += searched.further(budgets_ms)
    row = choose(rule, searched.front.model_copy(update={"winners": winners}), base["accuracy"])
    return {
        "device": searched.device,
        "rule": {"kind": rule.kind, "value": rule.value, "text": rule.text},
        "base": base,
        "largest_ms": searched.front.largest.predicted_ms,
        "uncertainty": searched.front.uncertainty.to_json(),
        "indistinct": indistinct(searched.front.winners, searched.front.uncertainty),
        **row.to_json(),
        "architecture": architecture(searched.layers(), row.config),
    }


def _base(searched: Searched) -> ComparedAccuracy:
    """The reference for shares of validation accuracy: the base model, or the largest SubNet if there is no base model."""
    samples = searched.front.uncertainty.samples
    if (base := searched.base) is not None:
        validated = samples and base.validation_samples
        return {"name": "base model", "accuracy": base.validation_accuracy, "samples": validated}
    return {"name": "largest SubNet", "accuracy": searched.front.largest.predicted_accuracy, "samples": samples}


def _compared(picks: tuple[Pick, Pick], searched: Searched) -> Row:
    front = searched.front
    if budgets_ms := sorted({each.budget_ms for each in picks if each.kind == "budget"}):
        front = front.model_copy(update={"winners": searched.further(budgets_ms) + front.winners})
    known = [*front.winners, *searched.known()]
    rows = searched.described([resolve(each, front, known, searched.device).config for each in picks])
    layers = searched.layers()
    sides = [
        {"word": each.word, **row, "elsewhere": layers.elsewhere(row["config"])}
        for each, row in zip(picks, rows, strict=True)
    ]
    return {
        "device": searched.device,
        "uncertainty": front.uncertainty.to_json(),
        "first": sides[0],
        "second": sides[1],
        "offset_ms": layers.offset_ms,
        "layers": side_by_side(layers, rows[0]["config"], rows[1]["config"]),
    }
