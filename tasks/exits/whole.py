"""SubNets that are worth thresholds: winners of a search, run as a whole, with all exits on the way."""

import numpy as np

from tailor_ir import Config, Space, SuperNet
from tasks.schemas.front import Front

EXIT = "exit"
"""The variable of exits."""


def exits_of(space: Space) -> tuple[str, ...]:
    """Names of all exits in order of depth; the last is the whole network. Empty: the space has none."""
    found = (variable.choices for variable in space.variables if variable.kind == EXIT)
    return tuple(map(str, next(found, ())))


def with_exit(space: Space, config: Config, exit_: str) -> Config:
    """The SubNet up to one exit."""
    return space.canonical({**config, EXIT: exit_})


def whole_subnets(net: SuperNet, front: Front, count: int) -> list[Config]:
    """At most so many SubNets that run as a whole, the most accurate first, evenly spread over a front.

    They are the winners that take no exit; where all take one, the winners with what lies behind it at its largest.
    """
    last = exits_of(net.space)[-1]
    configs = [row.config for row in sorted(front.winners, key=lambda row: row.accuracy)]
    own = [config for config in configs if config.get(EXIT, last) == last] or configs
    found = {net.space.digest(whole): whole for whole in (with_exit(net.space, config, last) for config in own)}
    whole = list(found.values())
    places = np.linspace(len(whole) - 1, 0, min(count, len(whole))).round().astype(int)
    return [whole[place] for place in places.tolist()]
