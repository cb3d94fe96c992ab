"""Judges of exits: they measure exits on validation images and decide how the training goes on.

Legend: B batch, C channels, H height, W width, K classes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import distributed

from tailor_ir import SuperNet
from tasks.evaluation.subnets import EvaluationData
from tasks.training.finetune.networks.exits.course import Course, ExitRunner
from tasks.training.finetune.networks.record import Verdict
from tasks.training.finetune.phases import TrainingPhase
from tasks.training.finetune.settings import ExitTraining

Item = TypeVar("Item")


class ExitMeter:
    """Measures exits of the largest SubNet, all in one pass."""

    def __init__(self, net: SuperNet, runner: ExitRunner, course: Course) -> None:
        self._net, self._runner, self._course = net, runner, course

    @torch.no_grad()
    def measure(self, data: EvaluationData, exits: Sequence[int], move: Callable[[], None]) -> list[float]:
        """Validation accuracies [0, 1] of some exits. Each rank takes a share of the images; all get the same numbers.

        BatchNorm statistics of trained parts are computed from training images, and stored.
        """
        net, constant = self._net, self._course.constant
        size, parts = net.input_size(net.max_config), self._runner.parts(net.max_config)
        net.set_statistics(parts.observe(_told(data.calibration(size), move), self._course.exits, constant))
        rank, world = distributed.get_rank(), distributed.get_world_size()
        correct, total = [0] * len(exits), 0
        with net.elastic.evaluated():
            for number, (x_BCHW, y_B) in enumerate(_told(data.batches(size), move)):
                if number % world == rank:
                    answers = parts.answers(x_BCHW, exits, constant)
                    right = [int((answer_BK.argmax(1) == y_B).sum()) for answer_BK in answers]
                    correct, total = [a + b for a, b in zip(correct, right, strict=True)], total + len(y_B)
        gathered: list[tuple[list[int], int]] = [([], 0)] * world
        distributed.all_gather_object(gathered, (correct, total))
        images = sum(count for _, count in gathered)
        return [sum(each) / images for each in zip(*(own for own, _ in gathered), strict=True)]


def _told(batches: Iterable[Item], move: Callable[[], None]) -> Iterator[Item]:
    for batch in batches:
        move()
        yield batch


class _Due:
    """The ends of epochs at which exits are judged, counted from the end of a phase."""

    def __init__(self, phase: TrainingPhase, steps: int) -> None:
        self._last, self._steps = phase.last_step, steps

    def __call__(self, step: int) -> bool:
        return (self._last - step) % self._steps == 0


class BestExit:
    """Finds the best exit, which teaches the others."""

    def __init__(self, meter: ExitMeter, names: Sequence[str], phase: TrainingPhase, steps: int) -> None:
        """names: of all exits. steps: between two judgements."""
        self._meter, self._names = meter, names
        self.is_due = _Due(phase, steps)
        self.kept: Mapping[str, torch.Tensor] = {}
        self._data: EvaluationData | None = None
        self._found: list[float] = []

    @property
    def best(self) -> int:
        """The position of the exit with the highest accuracy in the last judgement; the deepest of equals."""
        return max(range(len(self._found)), key=lambda position: (self._found[position], position))

    def begin(self, data: EvaluationData, move: Callable[[], None]) -> None:
        """Judge the weights at the start of the phase."""
        self._data = data
        self._found = self._meter.measure(data, range(len(self._names)), move)

    def go_on(self, data: EvaluationData, state: Mapping[str, Any], kept: Mapping[str, torch.Tensor]) -> None:
        """Go on from a checkpoint."""
        self._data, self._found = data, list(state["found"])

    def judge(self, step: int, move: Callable[[], None]) -> Verdict:
        """Measure all exits."""
        assert self._data is not None
        self.begin(self._data, move)
        return Verdict(accuracies=told(self._names, self._found))

    def state(self) -> dict[str, Any]:
        """The accuracies."""
        return {"found": self._found}


def told(names: Sequence[str], accuracies: Sequence[float]) -> dict[str, float]:
    """Accuracies of exits by their names in the history."""
    return {f"accuracy_exit_{name}": share for name, share in zip(names, accuracies, strict=False)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTraining:
    """State of the training of one part.

    floors: accuracies of earlier exits at its start, below which they must not fall. best: the highest accuracy of its own exit
    without loss at earlier ones. waited: number of judgements in a row without improvement.
    """

    floors: tuple[float, ...]
    best: float
    waited: int = 0

    def after(self, found: Sequence[float]) -> tuple["PartTraining", bool, bool]:
        """The next state given these accuracies, whether an earlier exit is worse, and whether its own exit is better."""
        worse = any(share < floor for share, floor in zip(found, self.floors, strict=False))
        better = not worse and found[-1] > self.best
        waited = 0 if better else self.waited + 1
        return replace(self, best=found[-1] if better else self.best, waited=waited), worse, better

    def is_over(self, target: float | None, patience: int | None) -> bool:
        """Whether the exit is good enough, or has stopped improving."""
        return (target is not None and self.best >= target) or (patience is not None and self.waited >= patience)


class StageJudge:
    """Ends the training of a part early, with its best weights that cost no earlier exit accuracy.

    If an earlier exit got worse, all weights go back to the last good ones, and earlier parts are constant from then on.
    """

    def __init__(
        self,
        net: SuperNet,
        meter: ExitMeter,
        course: Course,
        settings: ExitTraining,
        names: Sequence[str],
        phase: TrainingPhase,
        steps_per_epoch: int,
    ) -> None:
        """names: of the exits up to the part's own."""
        self._net, self._meter, self._course, self._settings = net, meter, course, settings
        self._names, self._last = names, phase.last_step
        self.is_due = _Due(phase, settings.every_epochs * steps_per_epoch)
        self.kept: Mapping[str, torch.Tensor] = {}
        self._data: EvaluationData | None = None
        self._stage = PartTraining(floors=(), best=0.0)

    @property
    def _target(self) -> float | None:
        targets = self._settings.target
        return None if targets is None else targets[0 if len(targets) == 1 else len(self._names) - 1]

    def begin(self, data: EvaluationData, move: Callable[[], None]) -> None:
        """Judge and keep the weights at the start of the part."""
        self._data = data
        *floors, best = self._measure(move)
        self._stage = PartTraining(floors=tuple(floors) if self._course.earlier else (), best=best)
        self._keep()

    def go_on(self, data: EvaluationData, state: Mapping[str, Any], kept: Mapping[str, torch.Tensor]) -> None:
        """Go on from a checkpoint."""
        self._data, self.kept = data, kept
        self._stage = PartTraining(floors=tuple(state["floors"]), best=state["best"], waited=state["waited"])
        if state["frozen"] and self._course.earlier:
            self._freeze()

    def judge(self, step: int, move: Callable[[], None]) -> Verdict:
        """Keep the weights, or restore the last good ones."""
        found = self._measure(move)
        self._stage, worse, better = self._stage.after(found)
        ended = step == self._last or self._stage.is_over(self._target, self._settings.patience)
        if better:
            self._keep()
        elif ended or worse:
            self._put_back()
        changed = worse and not ended
        if changed:
            self._stage = replace(self._stage, floors=())
            self._freeze()
            self._keep()
        return Verdict(accuracies=told(self._names, found), ended=ended, changed=changed)

    def state(self) -> dict[str, Any]:
        """The state of the part, and whether earlier parts are constant."""
        stage, frozen = self._stage, not self._course.earlier
        return {"floors": stage.floors, "best": stage.best, "waited": stage.waited, "frozen": frozen}

    def _measure(self, move: Callable[[], None]) -> list[float]:
        assert self._data is not None
        return self._meter.measure(self._data, range(len(self._names)), move)

    def _freeze(self) -> None:
        self._course.freeze_earlier()
        self._course.restrict(self._net)

    def _keep(self) -> None:
        names = self._course.trained(self._net) | self._course.statistics(self._net)
        self.kept = {name: self._net.elastic.tensor(name).detach().clone() for name in sorted(names)}

    @torch.no_grad()
    def _put_back(self) -> None:
        for name, tensor in self.kept.items():
            self._net.elastic.tensor(name).copy_(tensor)
