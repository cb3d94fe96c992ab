"""The sandbox that an agent plans around its child, and a warning for each missing wall."""

import os
import sys
from pathlib import Path

from profiling_agents.backends import ELSEWHERE
from profiling_agents.execution.settings import WallPlan
from profiling_agents.messages import Walls
from profiling_agents.sandbox.account import free_user
from profiling_agents.sensing import sensors
from profiling_agents.serving.options import ServerOptions


def wall_plan(options: ServerOptions, models: Path) -> WallPlan | None:
    """Make the folder of the models, and plan the sandbox of the process that runs them; None for no sandbox."""
    models.mkdir(mode=0o700)
    if not options.walls or options.backend in ELSEWHERE:
        return None
    user = free_user()
    if user is not None:
        os.chown(models, user, user)
    readable = () if options.sensors_root == sensors.SYSTEM else (options.sensors_root / "sys",)
    accelerator = (options.provider or "cpu").lower() not in ("cpu", "cpuexecutionprovider")
    return WallPlan(folder=models, user=user, readable=readable, accelerator=accelerator)


def told(options: ServerOptions, walls: Walls) -> Walls:
    """The sandbox for clients, including walls that were not planned; prints a line on stderr for each missing wall."""
    if options.backend in ELSEWHERE:
        return walls
    if not options.walls:
        walls = Walls(missing=("all: models can do what the agent's user can (--without-walls)",))
    for line in walls.missing:
        print(f"agent without a wall: {line}", file=sys.stderr, flush=True)
    return walls
