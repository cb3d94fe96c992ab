"""Commands that maintain an installation: health of its services, backup and restore, and clean-up of output folders."""

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from pydantic import BaseModel

from flows.cli.arguments import CLEAN, HEALTH, Arguments


def execute(arguments: Arguments) -> Mapping[str, Any]:
    """Execute the command, show its result, and return it as JSON. UserError: one line."""
    result: Mapping[str, Any] = _module(arguments.command).execute(arguments)
    return result


def config_of(arguments: Arguments) -> BaseModel:
    """The validated config. UserError for words or options that the command does not have."""
    config: BaseModel = _module(arguments.command).config_of(arguments)
    return config


def _module(command: str) -> ModuleType:
    """The command's own module, imported on demand because the others need further libraries."""
    if command == HEALTH:
        from flows.cli.operations import health

        return health
    if command == CLEAN:
        from flows.cli.operations import clean

        return clean
    from flows.cli.operations import backup

    return backup
