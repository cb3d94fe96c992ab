"""The SubNets that a step trains: drawn from (seed, step), so all ranks and a resumed run draw the same."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from tailor_ir import KINDS, Choice, Config
from tasks.training.finetune.networks.record import Role
from tasks.training.finetune.settings import Settings, Strategy

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
