"""The settings that are part of a stage's key: all except fields marked as outside of it."""

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel


@dataclass(frozen=True, slots=True)
class OutsideKey:
    """Marks a field of settings, `Annotated[int, OutsideKey(why)]`: changing its value makes no stage run again.

    why: the reason why the result stays the same, or the part of the key that replaces the field.
    """

    why: str


def key_settings(settings: BaseModel, *parts: type[BaseModel]) -> dict[str, Any]:
    """The settings that are part of a key, as JSON. `parts`: base classes of the settings; only their fields are taken."""
    of_parts = {name for part in parts for name in part.model_fields} if parts else None
    return settings.model_dump(mode="json", include=of_parts, exclude=outside_key(settings))


def outside_key(settings: BaseModel) -> dict[str, Any]:
    """The marked fields: name -> True; a field that holds settings -> the marked fields of these."""
    found: dict[str, Any] = {}
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if any(isinstance(mark, OutsideKey) for mark in field.metadata):
            found[name] = True
        elif isinstance(value, BaseModel) and (inner := outside_key(value)):
            found[name] = inner
    return found
