"""What was measured of exits on one device, as a file: the choices that `ResourcePolicy` looks up."""

from typing import Literal, Self

from pydantic import ValidationError, model_validator

from adaptive_runtime.errors import AdaptiveError
from adaptive_runtime.exits.resources import NO_EXIT, ExitChoice, ResourcePolicy
from profiling_agents.messages import Message, one_line


class ExitTable(Message):
    """SubNets by name, exits by name, and what each SubNet takes up to each exit.

    subnets, exits: what the numbers of an `ExitChoice` count. choices: as measured on the device.
    """

    version: Literal[1] = 1
    subnets: tuple[str, ...]
    exits: tuple[str, ...]
    choices: tuple[ExitChoice, ...]

    @model_validator(mode="after")
    def _numbers_are_of_names(self) -> Self:
        for choice in self.choices:
            if not 0 <= choice.subnet < len(self.subnets):
                raise ValueError(f"subnet {choice.subnet} of {len(self.subnets)}")
            if not NO_EXIT <= choice.exit < len(self.exits):
                raise ValueError(f"exit {choice.exit} of {len(self.exits)}")
        return self

    def policy(self) -> ResourcePolicy:
        """The look-up."""
        return ResourcePolicy(self.choices)

    def to_json(self) -> str:
        """The file's text."""
        return self.model_dump_json(indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: str = "exit table") -> Self:
        """From a file's text. AdaptiveError in one line: another version, or no such table."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise AdaptiveError(where, one_line(error), next_step="make the table again") from error
