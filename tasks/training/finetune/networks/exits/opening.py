"""The network of a phase that trains exits."""

from collections.abc import Mapping

import numpy as np

from tailor_ir import Choice, Config, SuperNet
from tasks.training.finetune.job import Job
from tasks.training.finetune.networks.exits.course import Course, ExitRunner
from tasks.training.finetune.networks.exits.judges import BestExit, ExitMeter, StageJudge
from tasks.training.finetune.networks.exits.network import TrainableExits
from tasks.training.finetune.networks.frozen import FrozenOriginal
from tasks.training.finetune.networks.record import Role
from tasks.training.finetune.networks.sampling import NOTHING
from tasks.training.finetune.phases import TrainingPhase
from tasks.training.finetune.settings import Settings

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

        return TrainableExits(net, runner, course, part, stage_judge, settings, share)
    heads = phase.strategy == "heads"
    course = Course(tuple(range(len(names) - 1)), len(names)) if heads else Course(tuple(range(len(names))))
    judge = BestExit(ExitMeter(net, runner, course), names, phase, every)
    if heads:
        course.restrict(net)
        parts = _weighted(names, course.exits, None)

        def alone(step: int) -> list[Role]:
            return [Role("heads", net.max_config, True, parts=parts)]

        return TrainableExits(net, runner, course, alone, judge, settings, share, lambda: len(names) - 1, original)
    weighted = _weighted(names, course.exits, settings.exits.weights)

    def together(step: int) -> list[Role]:
        return joint_roles(net, settings, step, weighted, fixed)

    return TrainableExits(net, runner, course, together, judge, settings, share, lambda: judge.best)


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
