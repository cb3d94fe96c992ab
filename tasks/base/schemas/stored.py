"""The common base of all schemas: strict records, files with a version, SubNets as rows, and errors of predictions."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from adaptive_runtime.base.files import json_of
from tasks.base.artifacts.files import json_bytes, write_bytes
from tasks.base.errors import UserError

Choice = int | float | str
"""A choice of a variable, equal to `tailor_ir.Choice`, which is not imported because that takes torch."""

Config = dict[str, Choice]
"""A SubNet, equal to `tailor_ir.Config`."""

StageResult = Mapping[str, Any]
"""The result of a stage as JSON: the content of its `result.json`, mostly by a schema of this package."""


class Strict(BaseModel):
    """The base of settings: immutable; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Record(Strict):
    """A part of a file; NaN and infinity are refused, too."""

    model_config = ConfigDict(allow_inf_nan=False)

    def to_json(self) -> dict[str, Any]:
        """The stored form: without fields that the writer has left out."""
        return self.model_dump(mode="json", exclude_unset=True)


class Stored(Record):
    """A file. Its version counts the changes of its form; a file of another version is refused.

    A schema whose form has changed sets its own default of `version`.
    """

    STAGE: ClassVar[str]
    """The stage that makes the file."""
    COMMAND: ClassVar[str] = ""
    """The command that runs the stage, if its name differs."""
    KIND: ClassVar[str] = "file"
    """The name of the file in errors."""

    version: int = 1

    def model_post_init(self, context: Any) -> None:
        """Mark the version as set, so that a file nested in another one always has it."""
        self.model_fields_set.add("version")

    def to_json(self) -> dict[str, Any]:
        """The stored form, with the version first."""
        return {"version": self.version, **self.model_dump(mode="json", exclude_unset=True, exclude={"version"})}

    def write(self, file: Path) -> dict[str, Any]:
        """Write the file atomically; returns its content."""
        content = self.to_json()
        write_bytes(file, json_bytes(content))
        return content

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a file that `write` wrote. UserError: it cannot be read, or is of another version or kind."""
        where = f"{cls.KIND} '{file}'"
        try:
            return cls.of_json(json_of(file.read_bytes()), where)
        except OSError as error:
            raise UserError(where, f"cannot be read ({error.strerror})", next_step=cls._again()) from error
        except ValueError as error:  # includes errors of decoding
            raise UserError(where, f"is no JSON ({error})", next_step=cls._again()) from error

    @classmethod
    def of_json(cls, content: Any, where: str) -> Self:
        """Parse the content of a file. UserError: it is of another version or kind."""
        content = cls.renewed(content) if isinstance(content, dict) else content
        version, present = content.get("version") if isinstance(content, dict) else None, cls.present_version()
        if isinstance(version, int) and version > present:
            got = f"has version {version}, of a later autotailor"
            raise UserError(where, got, allowed=str(present), next_step="update autotailor")
        if version != present:
            got = f"has {'no version' if version is None else f'version {version}'}"
            raise UserError(where, got, allowed=str(present), next_step=cls._again())
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            got = f"{'.'.join(map(str, first['loc']))}: {first['msg']}".lstrip(": ")
            raise UserError(where, got, next_step=cls._again()) from error

    @classmethod
    def renewed(cls, content: dict[str, Any]) -> dict[str, Any]:
        """The content of an older file in the present form; for schemas that read older files."""
        return content

    @classmethod
    def present_version(cls) -> int:
        """The version of newly written files."""
        version: int = cls.model_fields["version"].default
        return version

    @classmethod
    def _again(cls) -> str:
        return f"run the {cls.STAGE} stage again: autotailor {cls.COMMAND or cls.STAGE} …"


class Named(Record):
    """A SubNet by its digest and its config."""

    digest: str
    config: Config


class Predicted(Named):
    """A SubNet, its size, and its predictions. Predicted costs are set if they had a limit."""

    predicted_ms: float
    predicted_accuracy: float
    predicted_score: float
    macs: int
    parameters: int
    predicted_energy_mj: float | None = None
    predicted_memory_mib: float | None = None


class RelativeErrors(Record):
    """Relative errors of predictions: median and largest, share within ±10 %, Kendall's tau. Only `n` is set if it is 0."""

    n: int
    median_relative_error: float | None = None
    max_relative_error: float | None = None
    within_10_percent: float | None = None
    kendall_tau: float | None = None


class PointErrors(Record):
    """Mean and largest absolute difference of accuracies in points; Kendall's tau, None if there is no order."""

    mean_error_points: float
    max_error_points: float
    kendall_tau: float | None
