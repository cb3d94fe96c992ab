"""`python -m profiling_agents`: the agent without the rest of the installation's commands."""

import sys

from profiling_agents.cli import main

sys.exit(main(prog="python -m profiling_agents"))
