"""Settings of the baselines."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, field_validator

from tasks.base.artifacts import OutsideKey
from tasks.evaluation.models import ModelSettings

UNIFORM, RANDOM, MACS, SIBLINGS = "uniform", "random", "macs", "siblings"
OWN = (UNIFORM, RANDOM, MACS, SIBLINGS)

BaselineName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 _.-]{0,63}$")]


class Sibling(BaseModel):
    """A network of timm, trained here from random weights."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    options: dict[str, Any] = Field(default={}, description="further keyword arguments of timm's model")

    @field_validator("name")
    @classmethod
    def _is_known(cls, name: str) -> str:
        from tasks.evaluation.models.timm_networks import unknown  # timm takes a second

        if fault := unknown(name):
            raise ValueError(f"{fault[0]}; allowed: {fault[1]}")
        return name

    @property
    def model(self) -> ModelSettings:
        """The network."""
        return ModelSettings(name=self.name, options=self.options)

    @property
    def title(self) -> str:
        """The name for people: the network's name, followed by its options if it has any."""
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.name} ({options})" if options else self.name


def _named(sibling: Any) -> Any:
    return {"name": sibling} if isinstance(sibling, str) else sibling


class Settings(BaseModel):
    """Settings of the baselines; by default there are none.

    All are evaluated and timed like the refinement: with the images, `measure` and `rounds` of the predict stage.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    uniform: bool = Field(
        False, description="SubNets with one relative width (and depth) everywhere, at each resolution"
    )
    random: int = Field(0, ge=0, le=10_000, description="random SubNets")
    macs: bool = Field(False, description="what the genetic search finds with MACs in the place of the latency")
    siblings: tuple[Annotated[Sibling, BeforeValidator(_named)], ...] = Field(
        (), description="smaller networks of timm, each trained as long as base network and SuperNet together"
    )
    files: Annotated[
        dict[BaselineName, Annotated[tuple[Path, ...], Field(min_length=1)]],
        OutsideKey("their names and contents count"),
    ] = Field({}, description="name of a baseline -> .onnx files of its trained networks, BatchNorm not folded")
    seed: int = Field(0, ge=0)

    @field_validator("files")
    @classmethod
    def _are_other_files(cls, files: dict[str, tuple[Path, ...]]) -> dict[str, tuple[Path, ...]]:
        for name, paths in files.items():
            if name in OWN:
                raise ValueError(f"'{name}' is a baseline already; allowed: other names than {', '.join(OWN)}")
            for path in paths:
                if not path.is_file():
                    raise ValueError(f"{name}: '{path}' does not exist; allowed: .onnx files")
        return files

    @property
    def wanted(self) -> bool:
        """Whether at least one baseline is requested."""
        return bool(self.uniform or self.random or self.macs or self.siblings or self.files)
