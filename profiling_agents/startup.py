"""The agreement between an agent and the process that starts it: the token's variable, the line on stdout, the Python path."""

import os
from collections.abc import Mapping
from pathlib import Path

import quiet_libraries

PACKAGE = Path(__file__).resolve().parent
QUIET_LIBRARIES = Path(quiet_libraries.__file__).resolve().parent
"""The other package that an agent needs."""
TOKEN_VARIABLE = "AUTOTAILOR_AGENT_TOKEN"
READY = "agent ready: "
"""The words that the agent prints before its address when it listens."""


def python_path(environment: Mapping[str, str]) -> str:
    """PYTHONPATH with which another process imports this very package."""
    return os.pathsep.join([str(PACKAGE.parent), *filter(None, [environment.get("PYTHONPATH")])])
