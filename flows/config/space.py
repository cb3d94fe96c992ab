"""The space as it is written in a config: nested names, bare kinds and ranges become selectors with their choices."""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator

from tailor_ir import OF_SEVERAL

RANGE = ("from", "to", "step")
MOST_CHOICES = 1000
SpaceWord = Literal["auto", "frozen", "convolution", "light"]
"""The last two words are kinds of the heads of exits (`exits.head`)."""
WORDS = get_args(SpaceWord)


def _selectors(space: Any) -> Any:
    """Nested names joined with dots; a bare kind ("depth") stands for all variables of it ("*.depth").

    {from: 128, to: 224, step: 4} in the place of a list is 128, 132, …, 224.
    """
    if not isinstance(space, Mapping):
        return space
    selectors: dict[str, Any] = {}
    for name, choices in _leaves(space, ""):
        selector = f"*.{name}" if name in OF_SEVERAL else name
        if isinstance(choices, str) and choices not in WORDS:
            allowed = "convolution, light" if name == "exits.head" else "auto, frozen, or a list [a,b,…]"
            raise ValueError(f"{name}={choices}; allowed: {allowed}")
        selectors.pop(selector, None)  # the last mention also determines the order
        selectors[selector] = choices
    return selectors


def _leaves(space: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in space.items():
        if not isinstance(value, Mapping):
            yield f"{prefix}{key}", value
        elif any(word in value for word in RANGE):
            yield f"{prefix}{key}", _range(f"{prefix}{key}", value)
        else:
            yield from _leaves(value, f"{prefix}{key}.")


def _range(name: str, bounds: Mapping[Any, Any]) -> tuple[int | float, ...]:
    """Choices in equal steps, both ends included."""
    given = f"{name}={dict(bounds)}"
    if set(bounds) != set(RANGE) or not all(type(bounds[word]) in (int, float) for word in RANGE):
        raise ValueError(f"{given}; allowed: {{from: NUMBER, to: NUMBER, step: NUMBER}}")
    first, last, step = (Decimal(str(bounds[word])) for word in RANGE)
    if not all(number.is_finite() for number in (first, last, step)) or step <= 0 or last < first:
        raise ValueError(f"{given}; allowed: finite numbers, to not below from, step above 0")
    if (last - first) % step:
        raise ValueError(f"{given}: steps of {step} from {first} do not meet {last}; choose a step that does")
    if (last - first) / step >= MOST_CHOICES:
        raise ValueError(f"{given}: more than {MOST_CHOICES} choices; take a larger step")
    choices = [first + index * step for index in range(int((last - first) / step) + 1)]
    return tuple(int(choice) if choice == int(choice) else float(choice) for choice in choices)


SpaceSelectors = Annotated[dict[str, tuple[int | float | str, ...] | SpaceWord], BeforeValidator(_selectors)]
