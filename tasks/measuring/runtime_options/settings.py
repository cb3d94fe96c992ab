"""Settings of the stage "engine"."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from profiling_agents.messages import Engine, MeasureSettings, one_line
from tasks.measuring.settings import TimingSettings, Tolerance


def _words(choices: Any) -> Any:
    """The choices as text: YAML reads `on` and `off` as truth values, and 63 as a number."""
    switches = {True: "on", False: "off"}
    if not isinstance(choices, Mapping):
        return choices
    return {
        name: switches[choice] if isinstance(choice, bool) else str(choice) if isinstance(choice, int) else choice
        for name, choice in choices.items()
    }


def _in_form(choices: dict[str, str]) -> dict[str, str]:
    try:
        return Engine(choices=choices).choices
    except ValidationError as error:
        raise ValueError(one_line(error)) from error


Choices = Annotated[dict[str, str], BeforeValidator(_words), AfterValidator(_in_form)]
"""Option -> choice of an engine, as written in a config."""


class Settings(TimingSettings):
    """Settings of the search for an engine: the tried options, the SubNets, and the gain for which a choice is kept."""

    measure: MeasureSettings = MeasureSettings(warmup_ms=5.0, min_blocks=1, min_samples=3, time_cap_ms=30.0)
    tune: bool = Field(True, description="false: the runtime's defaults, and what is fixed")
    fixed: Choices = Field({}, description="option -> choice: taken as they are, the others are tried")
    random_subnets: int = Field(3, ge=0, le=100, description="SubNets besides the largest and the smallest")
    rounds: int = Field(6, ge=3, le=100, description="times that a choice is timed on each SubNet, at most")
    minimal_gain: float = Field(0.02, ge=0, lt=1, description="share of the time that a choice has to save")
    limit_s: float = Field(60.0, gt=0, description="after so long no further choice is tried")
    tolerance: Tolerance = Tolerance()
    seed: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _times_no_layers(self) -> Self:
        if self.measure.layers_ms or self.measure.energy_ms:
            raise ValueError("measure: layers_ms and energy_ms with a comparison of whole SubNets; allowed: 0")
        return self

    @property
    def wanted(self) -> bool:
        """Whether a device's engine may differ from its runtime's defaults."""
        return self.tune or bool(self.fixed)
