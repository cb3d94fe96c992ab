"""Settings of the stage that plays streams: SubNets, methods, and the window of reported errors."""

from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator

from tasks.adaptation.settings import MethodName
from tasks.base.artifacts import OutsideKey
from tasks.base.errors import UserError
from tasks.search.choose.pick import FILE_END, pick

StreamMethod = Literal["source", MethodName, "guarded"]
STREAM_METHODS: tuple[StreamMethod, ...] = get_args(StreamMethod)

ORIGINAL, LARGEST, SMALLEST_BUDGET = "original", "largest", "smallest_budget"
WITHOUT_SEARCH = (ORIGINAL, LARGEST)
OWN = (ORIGINAL, SMALLEST_BUDGET)
"""Names in addition to those of `tasks.search.choose.pick`."""


class Settings(BaseModel):
    """The SubNets that play the stream of `drift`, and the methods."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    subnets: Annotated[tuple[str, ...], OutsideKey("each SubNet is a stage of its own")] = Field(
        default=(ORIGINAL, LARGEST, SMALLEST_BUDGET), min_length=1
    )
    """original: the network; smallest_budget: the winner of the search's smallest budget; NUMBERms, largest, fastest, knee, a
    digest, or FILE.json: as compare takes them."""
    methods: tuple[StreamMethod, ...] = Field(default=STREAM_METHODS, min_length=1)
    window_images: int = Field(default=100, ge=1)
    """Number of images per error over time."""
    in_report: Annotated[bool, OutsideKey("who asks changes no error")] = False
    """run and report play the stream, too, and report.html shows it."""

    @field_validator("subnets")
    @classmethod
    def _are_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        titles = [title_of(name) for name in names]
        for name, title in zip(names, titles, strict=True):
            if titles.count(title) > 1:
                raise ValueError(f"two are called '{title}'; allowed: different names")
            if name not in OWN:
                try:
                    pick(name)
                except UserError as error:
                    raise ValueError(f"{error}, {', '.join(OWN)}") from error
        return names

    @field_validator("methods")
    @classmethod
    def _are_different(cls, methods: tuple[StreamMethod, ...]) -> tuple[StreamMethod, ...]:
        if len(set(methods)) < len(methods):
            raise ValueError("a method is there twice; allowed: each once")
        return methods

    @property
    def searched(self) -> tuple[str, ...]:
        """The names that have a meaning only after a search."""
        return tuple(name for name in self.subnets if name not in WITHOUT_SEARCH and not name.endswith(FILE_END))


def title_of(name: str) -> str:
    """The name of a SubNet in folders and tables: its own, or its file's."""
    return Path(name).stem if name.endswith(FILE_END) else name
