"""The engine: how a runtime runs whole networks, as choices of its options."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from profiling_agents.messages.base import AgentError, Message

MOST_OPTIONS = 32
Word = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]
Setting = bool | int | Word
RuntimeSettings = Annotated[dict[Word, Setting], Field(max_length=MOST_OPTIONS)]
"""Runtime settings, by the names of the runtime's own API."""


class EngineOption(Message):
    """An option of a runtime. `default`: the choice that the runtime's agent takes by itself. `does`: one sentence.

    `by_operator`: a model's file can make the same choice for each of its operators. `sets`: the changes of the runtime's
    settings per choice; a choice without an entry changes nothing.
    """

    name: Word
    choices: tuple[Word, ...] = Field(min_length=2, max_length=MOST_OPTIONS)
    default: Word
    does: str = Field(max_length=256)
    by_operator: bool = False
    sets: dict[Word, RuntimeSettings] = Field(default={}, max_length=MOST_OPTIONS)

    @model_validator(mode="after")
    def _names_choices(self) -> Self:
        for choice in (self.default, *self.sets):
            if choice not in self.choices:
                raise ValueError(f"choice '{choice}'; allowed: {', '.join(self.choices)}")
        return self


class Engine(Message):
    """Choices by option, in the order of names. An option without a choice has its default.

    An empty engine has all defaults.
    """

    choices: dict[Word, Word] = Field(default={}, max_length=MOST_OPTIONS)

    @field_validator("choices")
    @classmethod
    def _in_order(cls, choices: dict[str, str]) -> dict[str, str]:
        return dict(sorted(choices.items()))

    @property
    def text(self) -> str:
        """Text for people and for keys: `graph=basic order=priority`; "" for an empty engine."""
        return " ".join(f"{name}={choice}" for name, choice in self.choices.items())

    def changed(self, option: str, choice: str) -> "Engine":
        """The engine with one option changed to another choice."""
        return Engine(choices={**self.choices, option: choice})

    def settled(self, options: Sequence[EngineOption]) -> Mapping[str, str]:
        """The choice of every option of a runtime. AgentError, one line, for an unknown option or choice."""
        known = {option.name: option for option in options}
        for name, choice in self.choices.items():
            if name not in known:
                allowed = ", ".join(known) or "none"
                raise AgentError(f"engine: no option '{name}' on this device with its threads; allowed: {allowed}")
            if choice not in known[name].choices:
                raise AgentError(f"engine option '{name}': got '{choice}'; allowed: {', '.join(known[name].choices)}")
        return {name: self.choices.get(name, option.default) for name, option in known.items()}

    def applied(self, settings: RuntimeSettings, options: Sequence[EngineOption]) -> RuntimeSettings:
        """The runtime's settings with the changes of this engine. AgentError as in `settled`."""
        choices = self.settled(options)
        changes = [option.sets.get(choices[option.name], {}) for option in options]
        return {**settings, **{name: value for change in changes for name, value in change.items()}}

    def without_defaults(self, options: Sequence[EngineOption]) -> "Engine":
        """The same engine without choices that equal the defaults, so that equal engines have one text.

        AgentError as in `settled`.
        """
        self.settled(options)
        defaults = {option.name: option.default for option in options}
        return Engine(choices={name: choice for name, choice in self.choices.items() if choice != defaults[name]})

    def fingerprint(self, device: str) -> str:
        """The fingerprint (hex) of a device whose models run with this engine; the device's own with an empty engine."""
        return hashlib.sha256(f"{device} {self.text}".encode()).hexdigest() if self.choices else device


DEFAULT_ENGINE = Engine()
"""The engine with all defaults of a runtime."""
