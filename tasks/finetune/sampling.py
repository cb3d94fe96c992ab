"""Which SubNets a step trains: drawn from (seed, step), so all ranks and a resumed run draw the same."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.finetune.settings import Settings

Config = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Role:
    """One SubNet of a step: its name in the history, its config, and whether the first one teaches it."""

    name: str
    config: Config
    distilled: bool


def sample_roles(net: Any, settings: Settings, step: int) -> list[Role]:
    """The SubNets of one step, the teacher first."""
    rng = np.random.default_rng((settings.seed, step))
    if settings.strategy == "random":
        return [Role("random", net.space.sample(rng), False) for _ in range(settings.random_subnets)]
    draw = net.space.sample if settings.strategy == "sandwich" else lambda rng: compound(net.space, rng)
    return [
        Role("largest", net.max_config, False),
        Role("smallest", net.min_config, True),
        *(Role("random", draw(rng), True) for _ in range(settings.random_subnets)),
    ]


def compound(space: Any, rng: np.random.Generator) -> Config:
    """One random size per stage: its depth, width and expansions take the same rank among their choices.

    Variables outside stages (the resolution, the stem) are drawn on their own. Source: CompOFA (ICLR 2021).
    """
    stages = {variable.name.rpartition(".")[0] for variable in space.variables if variable.scope == "stage"}
    groups = [_group(variable.name, stages) for variable in space.variables]
    last = [len(variable.choices) - 1 for variable in space.variables]
    finest = {group: max(n for n, other in zip(last, groups, strict=True) if other == group) for group in groups}
    size = {group: rng.integers(count + 1) / max(1, count) for group, count in finest.items()}
    config = {
        variable.name: variable.choices[round(size[group] * n)]
        for variable, group, n in zip(space.variables, groups, last, strict=True)
    }
    canonical: Config = space.canonical(config)
    return canonical


def _group(name: str, stages: set[str]) -> str:
    """The stage that a variable belongs to; itself when it belongs to none."""
    return next((stage for stage in stages if name.startswith(f"{stage}.")), name)
