"""The child process in which foreign models run: `python -m profiling_agents.execution.worker SETTINGS` (JSON).

It sets up its sandbox before it imports anything outside Python's own library: the sandbox covers only later threads.
"""

import json
import os
import sys

from profiling_agents.sandbox.entering import PlannedSandbox, enter_sandbox


def main(argument: str) -> int:
    """Set up the sandbox that the settings plan, then serve requests until stdin closes."""
    settings = json.loads(argument)
    plan = settings["sandbox"]
    report = enter_sandbox(None if plan is None else PlannedSandbox.of(plan))
    from profiling_agents.execution.bench import serve, serve_segments

    return (serve_segments if settings["segments"] else serve)(argument, report)


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stdout.flush()
    # Native runtimes free their globals in an order that can crash; nothing is left to save here.
    os._exit(code)
