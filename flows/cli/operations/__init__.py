"""Commands that look after an installation: whether its services are well, backups, and the way back."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from flows.cli.arguments import HEALTH, Arguments


def execute(arguments: Arguments) -> Mapping[str, Any]:
    """Execute the command, show its result, and return it as JSON. UserError: one line."""
    from flows.cli.operations import backup, health

    return (health if arguments.command == HEALTH else backup).execute(arguments)


def config_of(arguments: Arguments) -> BaseModel:
    """The validated config. UserError: words or options that the command does not have."""
    from flows.cli.operations import backup, health

    return (health if arguments.command == HEALTH else backup).config_of(arguments)
