"""Networks in training: a SuperNet with its SubNets one after the other, a plain network, and branches by distillation.

SubNets of a step are drawn from (seed, step), so all ranks and a resumed run draw the same. A plain network is a
SuperNet with one SubNet, itself. In branch-wise distillation, each alternative by itself learns to reproduce the part
of the original network that it replaces. Source: AdaptiveNet (MobiCom 2023) §4.2.

Legend: B batch, C channels, H height, W width, K classes.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import nn

from tailor_ir import KINDS, Choice, Config, SuperNet
from tailor_ir.subnets.elastic import Branch, Branches, Features
from tasks.data.batches import Inputs, Nested, answers, each
from tasks.data.images import resize
from tasks.data.problems import CLASSIFICATION, LearningProblem
from tasks.data.samples import Size
from tasks.training.finetune.networks.record import Forward, FrozenOriginal, Role, Trainable
from tasks.training.finetune.numerics import distance, loss_of
from tasks.training.finetune.settings import Settings, Strategy, TrainSettings


class TrainableNetwork(Trainable):
    """One network with one input size."""

    def __init__(
        self, module: nn.Module, size: Size, settings: TrainSettings, problem: LearningProblem = CLASSIFICATION
    ) -> None:
        super().__init__(module, size, lambda step: [Role("network", {}, False)])
        self._settings, self._problem = settings, problem

    def losses(self, roles: Sequence[Role], x_BCHW: Inputs, target: Any, forward: Forward) -> Iterator[torch.Tensor]:
        """The loss from the targets."""
        outputs = answers(forward, resize(x_BCHW, self.base_size))
        yield loss_of(outputs, target, self._settings, problem=self._problem)


class BranchRunner(nn.Module):
    """Runs several branches, those in `chosen`, in one forward pass."""

    def __init__(self, net: SuperNet) -> None:
        super().__init__()
        self.elastic = net.elastic
        self.chosen: Sequence[Branch] = ()

    @cached_property
    def branches(self) -> Branches:
        """Branches of the network; read once it is on its device, since moving it makes its modules anew."""
        return Branches(self.elastic)

    def forward(self, features: Features) -> list[torch.Tensor]:
        """The result of each chosen branch on the features of its entry."""
        return [self.branches.run(branch, features) for branch in self.chosen]


class TrainableBranches(Trainable):
    """A SuperNet whose alternatives are trained one by one, on features of the frozen original for each micro-batch."""

    def __init__(self, net: SuperNet, original: FrozenOriginal, settings: Settings) -> None:
        self._run = BranchRunner(net)
        size = net.input_size(net.max_config)
        super().__init__(net.elastic, size, self._drawn, net=net, runner=self._run, original=original)
        self._settings = settings
        self._originals = frozenset(net.structure.graph.original().parameters)

    @cached_property
    def _branches(self) -> Sequence[Branch]:
        """Branches with parameters to train."""
        return [one for one in self._run.branches.branches if not self._originals.issuperset(one.parameters)]

    def undecayed(self) -> Sequence[torch.Tensor]:
        """Empty: every matrix of an alternative decays."""
        return ()

    def _drawn(self, step: int) -> list[Role]:
        """One role, with the branches of this step."""
        rng = np.random.default_rng((self._settings.seed, step))
        exits = [branch.exit for branch in self._branches]
        return [Role("branches", {}, True, draw_branches(exits, self._settings.branches_per_step, rng))]

    def losses(self, roles: Sequence[Role], x_BCHW: Inputs, target: Any, forward: Forward) -> Iterator[torch.Tensor]:
        """The mean distance of the branches' results from the original's."""
        features = self._run.branches.features(x_BCHW)
        for role in roles:
            chosen = self._run.chosen = [self._branches[position] for position in role.branches]
            results = forward({branch.entry: features[branch.entry] for branch in chosen})
            pairs = zip(results, chosen, strict=True)
            yield torch.stack([distance(result, features[branch.exit]) for result, branch in pairs]).mean()


def draw_branches(exits: Sequence[str], count: int | None, rng: np.random.Generator) -> tuple[int, ...]:
    """Positions of random branches, ascending. exits: the exit of each branch. count: None draws one branch per exit.

    Otherwise `count` branches, or all; an exit gets a second branch only if all other exits have as many as it has.
    """
    seen: Counter[str] = Counter()
    ranked: list[tuple[int, int]] = []
    for position in rng.permutation(len(exits)).tolist():
        ranked.append((seen[exits[position]], position))
        seen[exits[position]] += 1
    ranked.sort(key=lambda pair: pair[0])
    taken = [pair for pair in ranked if pair[0] == 0] if count is None else ranked[:count]
    return tuple(sorted(position for _, position in taken))


OPENED = 1.0
MOST_DRAWS = 100
NOTHING: Mapping[str, Choice] = MappingProxyType({})


def sample_roles(
    net: Any, strategy: Strategy, settings: Settings, step: int, done: float, *, fixed: Mapping[str, Choice] = NOTHING
) -> list[Role]:
    """The SubNets of a step, the teacher first if it is one of them. done: share [0, 1] of the strategy's steps before it.

    fixed: choices of the largest SubNet that override the drawn ones in all SubNets, except in `tune`.
    """

    def subnet(config: Config) -> Config:
        canonical: Config = net.space.canonical({**config, **fixed})
        return canonical

    rng = np.random.default_rng((settings.seed, step))
    from_base = settings.teacher == "base"
    if strategy == "tune":
        return [Role("tune", with_alternatives(net.space, rng), True) for _ in range(settings.random_subnets)]
    if strategy in ("random", "progressive"):
        opened = OPENED if strategy == "random" else done
        return [
            Role("random", subnet(progressive(net.space, rng, opened)), from_base)
            for _ in range(settings.random_subnets)
        ]
    draw = uniform if strategy == "sandwich" else compound
    return [
        Role("largest", net.max_config, from_base),
        Role("smallest", subnet({v.name: v.choices[0] for v in net.space.variables}), True),
        *(Role("random", subnet(draw(net.space, rng)), True) for _ in range(settings.random_subnets)),
    ]


def uniform(space: Any, rng: np.random.Generator) -> Config:
    """A config with each variable uniform over its choices."""
    codes = rng.integers(0, space.cardinalities).tolist()
    return {variable.name: variable.choices[code] for variable, code in zip(space.variables, codes, strict=True)}


def progressive(space: Any, rng: np.random.Generator, done: float) -> Config:
    """A random SubNet of the part of the space that is open after the share `done` [0, 1] of the training.

    Kinds without a phase, such as the resolution, are open from the start. The others open phase by phase, each in two steps:
    the larger half of the choices, then all. Source: Once-for-all (ICLR 2020), §3.3.
    """
    phase_of = {variable.kind: KINDS[variable.kind].phase for variable in space.variables}
    phases = sorted({phase for phase in phase_of.values() if phase is not None})
    config: Config = {}
    for variable in space.variables:
        last = len(variable.choices) - 1
        first = 0
        for number, phase in enumerate(phases):
            if phase_of[variable.kind] == phase:
                steps = min(2, max(0, 1 + math.floor(2 * (done * len(phases) - number))))
                first = last - math.ceil(last * steps / 2)
        config[variable.name] = variable.choices[int(rng.integers(first, last + 1))]
    return config


def with_alternatives(space: Any, rng: np.random.Generator) -> Config:
    """A random SubNet with at least one alternative.

    If random draws find none, the largest SubNet with one block replaced.
    """
    blocks = [variable for variable in space.variables if variable.kind == "block"]
    for _ in range(MOST_DRAWS):
        config: Config = space.sample(rng)
        if any(config.get(variable.name, variable.default) != variable.default for variable in blocks):
            return config
    variable = blocks[rng.integers(len(blocks))]
    choice = variable.choices[rng.integers(len(variable.choices) - 1)]
    replaced: Config = space.canonical({variable.name: choice})
    return replaced


def compound(space: Any, rng: np.random.Generator) -> Config:
    """One random size per stage: its depth, width and expansions take the same rank among their choices.

    Variables outside stages (the resolution, the stem) are drawn independently. Source: CompOFA (ICLR 2021).
    """
    stages = {variable.name.rpartition(".")[0] for variable in space.variables if variable.scope == "stage"}
    groups = [_group(variable.name, stages) for variable in space.variables]
    last = [len(variable.choices) - 1 for variable in space.variables]
    finest = {group: max(n for n, other in zip(last, groups, strict=True) if other == group) for group in groups}
    size = {group: rng.integers(count + 1) / max(1, count) for group, count in finest.items()}
    return {
        variable.name: variable.choices[round(size[group] * n)]
        for variable, group, n in zip(space.variables, groups, last, strict=True)
    }


def _group(name: str, stages: set[str]) -> str:
    """The stage of a variable; the variable itself if it belongs to no stage."""
    return next((stage for stage in stages if name.startswith(f"{stage}.")), name)


class TrainableSuperNet(Trainable):
    """A SuperNet in training: `draw` gives the SubNets of a step, the teacher first.

    share: the weight of soft labels. original: the frozen original, if only alternatives are trained; it teaches if there is no
    other teacher.
    """

    def __init__(
        self,
        net: SuperNet,
        draw: Callable[[int], list[Role]],
        teacher: nn.Module | None,
        settings: Settings,
        share: float,
        original: FrozenOriginal | None = None,
        problem: LearningProblem = CLASSIFICATION,
    ) -> None:
        size = net.input_size(net.max_config)
        super().__init__(net.elastic, size, draw, net=net, teacher=teacher, original=original)
        self._net, self._settings, self._share, self._problem = net, settings, share, problem

    def losses(self, roles: Sequence[Role], x_BCHW: Inputs, target: Any, forward: Forward) -> Iterator[torch.Tensor]:
        """The loss of each SubNet; without a frozen teacher the first SubNet teaches the others."""
        taught = self._taught(x_BCHW)
        for role in roles:
            self._net.elastic.activate(role.config)
            outputs = answers(forward, resize(x_BCHW, self._net.input_size(role.config)))
            own = taught if role.distilled else None
            yield loss_of(outputs, target, self._settings, own, self._share, self._problem)
            if taught is None:
                taught = each(outputs, torch.Tensor.detach)

    @torch.no_grad()
    def _taught(self, x_BCHW: Inputs) -> Nested | None:
        """Raw outputs of the frozen teacher, e.g. logits (B, K); None without a teacher or if `share` is 0."""
        if not self._share:
            return None
        x_BCHW = resize(x_BCHW, self.base_size)
        if self.teacher is not None:
            return answers(self.teacher, x_BCHW)
        return None if self.original is None else self.original.logits(x_BCHW)
