"""The settings that count in the key of a stage: all except those that are marked at their field as outside of it."""

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel


@dataclass(frozen=True, slots=True)
class OutsideKey:
    """Marks a field of settings, `Annotated[int, OutsideKey(why)]`: with another value no stage is worked again.

    why: what makes the result the same, or what counts in the key in the field's place.
    """

    why: str


def key_settings(settings: BaseModel, *parts: type[BaseModel]) -> dict[str, Any]:
    """The settings that count in a key, as JSON. `parts`: of the fields of these base classes of theirs alone."""
    of_parts = {name for part in parts for name in part.model_fields} if parts else None
    return settings.model_dump(mode="json", include=of_parts, exclude=outside_key(settings))


def outside_key(settings: BaseModel) -> dict[str, Any]:
    """The marked fields: name -> True, or the same of the settings that a field has."""
    found: dict[str, Any] = {}
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if any(isinstance(mark, OutsideKey) for mark in field.metadata):
            found[name] = True
        elif isinstance(value, BaseModel) and (inner := outside_key(value)):
            found[name] = inner
    return found
