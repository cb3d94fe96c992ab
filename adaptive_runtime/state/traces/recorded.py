"""Traces as files."""

from pathlib import Path
from typing import ClassVar, Self

from pydantic import ValidationError

from adaptive_runtime.base.errors import AdaptiveError
from profiling_agents.messages import Message, one_line


class RecordedTrace(Message):
    """Files of traces of any kind. AGAIN: next step after a damaged file."""

    AGAIN: ClassVar[str] = "record or draw the trace again"

    def write(self, file: Path) -> None:
        """Write the file, completely or not at all."""
        beside = file.with_name(file.name + ".part")
        beside.write_text(self.model_dump_json() + "\n", encoding="utf-8")
        beside.replace(file)

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read the file. AdaptiveError in one line: damage, or another kind of file."""
        try:
            return cls.model_validate_json(file.read_bytes())
        except OSError as error:
            raise AdaptiveError(str(file), f"cannot be read ({error.strerror})", next_step=cls.AGAIN) from error
        except ValidationError as error:
            raise AdaptiveError(str(file), one_line(error), next_step=cls.AGAIN) from error
