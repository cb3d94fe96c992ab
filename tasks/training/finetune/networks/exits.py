"""A SuperNet whose exits are trained, all of a SubNet in one forward pass: jointly, part by part, or their heads alone.

Each phase has trained and constant parts of the network. Judges measure exits on validation images and decide how the
training goes on.

Legend: B batch, C channels, H height, W width, K classes.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import distributed, nn

from tailor_ir import Choice, Config, ExitParts, SuperNet
from tailor_ir.subnets.plans import remembered
from tasks.data.batches import Inputs, only
from tasks.data.images import resize
from tasks.evaluation.subnets import EvaluationData
from tasks.training.finetune.job import Job, TrainingPhase
from tasks.training.finetune.networks.record import Forward, FrozenOriginal, Judge, Role, Trainable, Verdict
from tasks.training.finetune.networks.supernet import NOTHING
from tasks.training.finetune.numerics import loss_of
from tasks.training.finetune.settings import ExitTraining, Settings

PARTS_KEPT = 32


class ExitRunner(nn.Module):
    """Runs exits of any SubNet in one forward pass; in training with dropout in heads."""

    def __init__(self, net: SuperNet, dropout: float = 0.0) -> None:
        super().__init__()
        self._dropout = dropout
        self.elastic = net.elastic
        self._space = net.space
        self._known: OrderedDict[bytes, ExitParts] = OrderedDict()

    def parts(self, config: Config) -> ExitParts:
        """The parts of a SubNet; called once the network is on its device, since moving it makes its modules anew."""
        key = self._space.row(config).tobytes()
        return remembered(self._known, key, PARTS_KEPT, lambda: ExitParts(self.elastic, config))

    def forward(self, x_BCHW: torch.Tensor, config: Config, exits: Sequence[int], constant: int) -> list[torch.Tensor]:
        """The answers (B, K) of some exits; the bodies of the first `constant` parts get no gradients."""
        dropout = self._dropout if self.elastic.training else 0.0
        return self.parts(config).answers(x_BCHW, exits, constant, dropout)


@dataclass(slots=True)
class Course:
    """Positions of the trained exits, and the number of constant parts before them; both may change during training.

    earlier: number of parts, of those not constant, that are trained with a lower rate.
    """

    exits: tuple[int, ...]
    constant: int = 0
    earlier: int = 0

    def freeze_earlier(self) -> None:
        """Train only the last exit, and make all parts before it constant."""
        self.exits, self.constant, self.earlier = self.exits[-1:], self.exits[-1], 0

    def restrict(self, net: SuperNet) -> None:
        """Enable gradients for the trained tensors only."""
        trained = self.trained(net)
        for name in net.structure.graph.parameters:
            net.elastic.tensor(name).requires_grad_(name in trained)

    def trained(self, net: SuperNet) -> set[str]:
        """Names of the trained tensors."""
        parts = ExitParts(net.elastic, net.max_config).parts
        heads = {name for part in parts for name in part.head_parameters}
        own = {name for part in parts[self.constant : max(self.exits) + 1] for name in part.parameters} - heads
        return own | {name for position in self.exits for name in parts[position].head_parameters}

    def statistics(self, net: SuperNet) -> set[str]:
        """Names of the BatchNorm statistics that depend on trained tensors."""
        parts = ExitParts(net.elastic, net.max_config).parts
        return {name for part in parts[: max(self.exits) + 1] for name in part.statistics}

    def slowed(self, net: SuperNet) -> list[torch.Tensor]:
        """The trained tensors of earlier parts."""
        parts = ExitParts(net.elastic, net.max_config).parts
        earlier = {name for part in parts[: self.earlier] for name in part.parameters}
        return [net.elastic.tensor(name) for name in earlier & self.trained(net)]


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
        net.set_statistics(parts.observe(_described(data.calibration(size), move), self._course.exits, constant))
        rank, world = distributed.get_rank(), distributed.get_world_size()
        correct, total = [0] * len(exits), 0
        with net.elastic.evaluated():
            for number, (x_BCHW, y_B) in enumerate(_described(data.batches(size), move)):
                if number % world == rank:
                    answers = parts.answers(x_BCHW, exits, constant)
                    right = [int((answer_BK.argmax(1) == y_B).sum()) for answer_BK in answers]
                    correct, total = [a + b for a, b in zip(correct, right, strict=True)], total + len(y_B)
        gathered: list[tuple[list[int], int]] = [([], 0)] * world
        distributed.all_gather_object(gathered, (correct, total))
        images = sum(count for _, count in gathered)
        return [sum(each) / images for each in zip(*(own for own, _ in gathered), strict=True)]


def _described(batches: Iterable[Item], move: Callable[[], None]) -> Iterator[Item]:
    for batch in batches:
        move()
        yield batch


class BestExit(Judge):
    """Finds the best exit, which teaches the others."""

    def __init__(self, meter: ExitMeter, names: Sequence[str], phase: TrainingPhase, steps: int) -> None:
        """names: of all exits. steps: between two judgements."""
        super().__init__(phase, steps)
        self._meter, self._names = meter, names
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
        return Verdict(accuracies=described(self._names, self._found))

    def state(self) -> dict[str, Any]:
        """The accuracies."""
        return {"found": self._found}


def described(names: Sequence[str], accuracies: Sequence[float]) -> dict[str, float]:
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


class StageJudge(Judge):
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
        super().__init__(phase, settings.every_epochs * steps_per_epoch)
        self._net, self._meter, self._course, self._settings, self._names = net, meter, course, settings, names
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
        return Verdict(accuracies=described(self._names, found), ended=ended, changed=changed)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitTeaching:
    """Soft labels for exits. share: their weight in the loss. original: the frozen original, if heads alone are trained.

    exit: position of the exit of the first SubNet that teaches the others; None: no exit teaches.
    """

    share: float
    exit: Callable[[], int | None] = lambda: None
    original: FrozenOriginal | None = None


class TrainableExits(Trainable):
    """A SuperNet in which all exits of a SubNet are trained in one pass.

    draw: gives the SubNets of a step, the largest first.
    """

    def __init__(
        self,
        net: SuperNet,
        runner: ExitRunner,
        course: Course,
        draw: Callable[[int], list[Role]],
        judge: Judge,
        settings: Settings,
        teaching: ExitTeaching,
    ) -> None:
        teacher = net.build(net.max_config) if settings.teacher == "base" else None
        size, original = net.input_size(net.max_config), teaching.original
        super().__init__(net.elastic, size, draw, net=net, runner=runner, teacher=teacher, original=original)
        self.judge = judge
        self._net, self._course, self._settings = net, course, settings
        self._teaching, self._share = teaching.exit, teaching.share

    def slowed(self) -> tuple[Sequence[torch.Tensor], float]:
        """Weights of earlier parts, and their factor."""
        return self._course.slowed(self._net), self._settings.exits.earlier_rate

    def losses(self, roles: Sequence[Role], x_BCHW: Inputs, target: Any, forward: Forward) -> Iterator[torch.Tensor]:
        """Losses (P,) of the trained exits, for each SubNet."""
        net, exits, constant = self._net, self._course.exits, self._course.constant
        x_BCHW = only(x_BCHW)
        taught_BK = self._taught(x_BCHW)
        teaching = None if taught_BK is not None or not self._share else self._teaching()
        asked = exits if teaching is None or teaching in exits else (*exits, teaching)
        for role in roles:
            pixels = resize(x_BCHW, net.input_size(role.config))
            answers = dict(zip(asked, forward(pixels, role.config, asked, constant), strict=True))
            own = None
            if teaching is not None and taught_BK is None:
                own, taught_BK = teaching, answers[teaching].detach()
            yield torch.stack(
                [
                    loss_of(answers[at], target, self._settings, None if at == own else taught_BK, self._share)
                    for at in exits
                ]
            )

    @torch.no_grad()
    def _taught(self, x_BCHW: torch.Tensor) -> torch.Tensor | None:
        """Logits (B, K) of the frozen copy; None if it does not teach."""
        if self.teacher is None or not self._share:
            return None
        taught_BK: torch.Tensor = self.teacher(resize(x_BCHW, self.base_size))
        return taught_BK


WeightedNames = tuple[tuple[str, float], ...]


def open_exits(
    net: SuperNet,
    job: Job,
    phase: TrainingPhase,
    settings: Settings,
    original: FrozenOriginal | None,
    fixed: Mapping[str, Choice],
) -> TrainableExits:
    """The network in the training mode of the phase. original: for `heads`. fixed: choices of all SubNets in `joint`."""
    names, runner = job.exits, ExitRunner(net, settings.exits.dropout)
    assert phase.strategy is not None
    share = settings.soft_share(phase.strategy)
    every = settings.exits.every_epochs * job.steps_per_epoch
    if phase.strategy == "staged":
        assert phase.part is not None
        course = _stage(phase.part, improves=settings.exits.earlier == "improve")
        course.restrict(net)
        reached = names[: phase.part + 1]
        meter = ExitMeter(net, runner, course)
        stage_judge = StageJudge(net, meter, course, settings.exits, reached, phase, job.steps_per_epoch)

        def part(step: int) -> list[Role]:
            return [Role("staged", net.max_config, False, parts=_weighted(names, course.exits, None))]

        return TrainableExits(net, runner, course, part, stage_judge, settings, ExitTeaching(share=share))
    heads = phase.strategy == "heads"
    course = Course(tuple(range(len(names) - 1)), len(names)) if heads else Course(tuple(range(len(names))))
    judge = BestExit(ExitMeter(net, runner, course), names, phase, every)
    if heads:
        course.restrict(net)
        parts = _weighted(names, course.exits, None)

        def alone(step: int) -> list[Role]:
            return [Role("heads", net.max_config, True, parts=parts)]

        teaching = ExitTeaching(share=share, exit=lambda: len(names) - 1, original=original)
        return TrainableExits(net, runner, course, alone, judge, settings, teaching)
    weighted = _weighted(names, course.exits, settings.exits.weights)

    def together(step: int) -> list[Role]:
        return joint_roles(net, settings, step, weighted, fixed)

    teaching = ExitTeaching(share=share, exit=lambda: judge.best)
    return TrainableExits(net, runner, course, together, judge, settings, teaching)


def _stage(part: int, *, improves: bool) -> Course:
    return Course(tuple(range(part + 1)), earlier=part) if improves and part else Course((part,), part)


def _weighted(names: tuple[str, ...], exits: tuple[int, ...], weights: tuple[float, ...] | None) -> WeightedNames:
    """Names and weights of the exits' losses; the weights sum up to 1."""
    own = [1.0 if weights is None else weights[position] for position in exits]
    return tuple((f"exit_{names[at]}", weight / sum(own)) for at, weight in zip(exits, own, strict=True))


def joint_roles(
    net: SuperNet, settings: Settings, step: int, parts: WeightedNames, fixed: Mapping[str, Choice] = NOTHING
) -> list[Role]:
    """The SubNets of a step, each up to its last exit; if the space varies more than exits, those of the sandwich rule."""
    space = net.space
    if len(space.variables) == 1:
        return [Role("joint", net.max_config, True, parts=parts)]
    rng = np.random.default_rng((settings.seed, step))
    last = next({one.name: one.default, **fixed} for one in space.variables if one.kind == "exit")
    smallest: Config = {one.name: one.choices[0] for one in space.variables} | last
    random = [
        {one.name: one.choices[int(rng.integers(len(one.choices)))] for one in space.variables} | last
        for _ in range(settings.random_subnets)
    ]
    configs = [("largest", net.max_config), ("smallest", smallest), *(("random", config) for config in random)]
    return [Role(name, config, True, parts=parts) for name, config in configs]
