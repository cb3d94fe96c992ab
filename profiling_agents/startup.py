"""The agreement between an agent and the process that starts it: the token's variable, the line on stdout, the Python path."""

import os
from collections.abc import Mapping
from pathlib import Path

import importing

PACKAGE = Path(__file__).resolve().parent
IMPORTING = Path(importing.__file__).resolve().parent
"""The other package that an agent needs."""
TOKEN_VARIABLE = "AUTOTAILOR_AGENT_TOKEN"
READY = "agent ready: "
"""Prefix of the line with which the agent reports its address when it listens."""


def python_path(environment: Mapping[str, str]) -> str:
    """PYTHONPATH with which another process imports this very package."""
    return os.pathsep.join([str(PACKAGE.parent), *filter(None, [environment.get("PYTHONPATH")])])
