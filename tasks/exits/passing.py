"""SubNets that get thresholds: winners of a search that pass exits before their own."""

import numpy as np

from tailor_ir import Config, Space, SuperNet
from tasks.base.schemas.front import Front

EXIT = "exit"
"""The kind, and the name, of the exit variable."""


def exits_of(space: Space) -> tuple[str, ...]:
    """Names of all exits in order of depth; the last is the whole network. Empty if the space has no exits."""
    found = (variable.choices for variable in space.variables if variable.kind == EXIT)
    return tuple(map(str, next(found, ())))


def with_exit(space: Space, config: Config, exit_: str) -> Config:
    """The SubNet up to one exit."""
    return space.canonical({**config, EXIT: exit_})


def passing_subnets(net: SuperNet, front: Front, count: int) -> list[Config]:
    """At most `count` winners that pass an exit before their own, the most accurate first, evenly spread over the front.

    They are chosen from the whole SubNets among these; if there are none, from all of them.
    """
    rows = sorted(front.winners, key=lambda row: row.accuracy)
    passing = {net.space.digest(row.config): row.config for row in rows if len(net.exits(row.config)) > 1}
    last = exits_of(net.space)[-1]
    chosen = [config for config in passing.values() if config[EXIT] == last] or list(passing.values())
    places = np.linspace(len(chosen) - 1, 0, min(count, len(chosen))).round().astype(int)
    return [chosen[place] for place in places.tolist()]
