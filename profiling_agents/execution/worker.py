"""The child process in which foreign models run: `python -m profiling_agents.execution.worker SETTINGS` (JSON).

It sets up its sandbox before it imports anything outside Python's own library: the sandbox covers only later threads.
"""

import json
import os
import sys

from profiling_agents.sandbox.raising import PlannedWalls, raise_walls


def main(argument: str) -> int:
    """Set up the sandbox that the settings plan, then serve requests until stdin closes."""
    settings = json.loads(argument)
    plan = settings["walls"]
    raised = raise_walls(None if plan is None else PlannedWalls.of(plan))
    from profiling_agents.execution import bench, segments

    return (segments if settings["segments"] else bench).serve(argument, raised)


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stdout.flush()
    # Native runtimes free their globals in an order that can crash; nothing is left to save here.
    os._exit(code)
