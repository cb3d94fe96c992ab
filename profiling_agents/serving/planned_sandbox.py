"""The sandbox that an agent plans around its child, and a warning for each part that is missing."""

import os
import sys
from pathlib import Path

from profiling_agents.backends import ELSEWHERE
from profiling_agents.execution.settings import SandboxPlan
from profiling_agents.messages import Sandbox
from profiling_agents.sandbox.account import free_user
from profiling_agents.sensing import sensors
from profiling_agents.serving.options import ServerOptions


def sandbox_plan(options: ServerOptions, models: Path) -> SandboxPlan | None:
    """Make the folder of the models, and plan the sandbox of the process that runs them; None for no sandbox."""
    models.mkdir(mode=0o700)
    if not options.sandbox or options.backend in ELSEWHERE:
        return None
    user = free_user()
    if user is not None:
        os.chown(models, user, user)
    readable = () if options.sensors_root == sensors.SYSTEM else (options.sensors_root / "sys",)
    accelerator = (options.provider or "cpu").lower() not in ("cpu", "cpuexecutionprovider")
    return SandboxPlan(folder=models, user=user, readable=readable, accelerator=accelerator)


def told(options: ServerOptions, sandbox: Sandbox) -> Sandbox:
    """The sandbox for clients, including parts that were not planned; prints a line on stderr for each missing part."""
    if options.backend in ELSEWHERE:
        return sandbox
    if not options.sandbox:
        sandbox = Sandbox(missing=("all: models can do what the agent's user can (--without-sandbox)",))
    for line in sandbox.missing:
        print(f"the agent's sandbox lacks {line}", file=sys.stderr, flush=True)
    return sandbox
