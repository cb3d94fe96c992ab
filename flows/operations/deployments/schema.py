"""JSON schemas of forms with every setting; a run gets only the settings that were entered."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from flows.config import DeviceProfile

Plain = dict[str, Any]
DEVICES = "devices"
FIRST = ("model", "data", "space", DEVICES)
"""Settings that most runs change; the others follow in the order of the stages."""
ELSEWHERE = ("device", "output_dir", "supernet")
"""Settings that are fields of the short form, or a list instead of a mapping."""
DEVICES_TEXT = "All devices of the run; an entry with the name of an option, or of a device above, starts from that."
NAME = {"title": "name", "type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"}


def settings_schema(model: type[BaseModel]) -> Plain:
    """The schema of some settings of a config. A form shows them section by section; sections open on request.

    Defaults are written into descriptions, because a form would send a default like an entered value, which overrides a preset.
    Devices are a list with names, because forms show a mapping as raw JSON.
    """
    schema = model.model_json_schema()
    definitions = schema["$defs"]
    sections = {name: _without_defaults(node, definitions, name) for name, node in schema["properties"].items()}
    device = _without_defaults(definitions[DeviceProfile.__name__], definitions)
    named = {**device, "properties": {"name": NAME, **device["properties"]}, "required": ["name"]}
    sections[DEVICES] = {"title": DEVICES, "description": DEVICES_TEXT, "type": "array", "items": named}
    order = [name for name in (*FIRST, *sections) if name in sections and name not in ELSEWHERE]
    shown = {name: _unopened(sections[name]) for name in order}
    return {"type": "object", "title": "Settings", "properties": shown, "additionalProperties": False}


def _unopened(node: Plain) -> Plain:
    """A part of a form that is shown and sent once it is opened; null until then."""
    told: Plain = {key: node[key] for key in ("title", "description") if key in node}
    return {**told, "anyOf": [node, {"type": "null"}], "default": None}


def _without_defaults(node: Any, definitions: Mapping[str, Any], title: str = "") -> Any:
    """A schema with its references resolved and each default in its description. `title`: its name in a form."""
    if isinstance(node, list):
        return [_without_defaults(inner, definitions) for inner in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        node = definitions[node["$ref"].rsplit("/", 1)[1]] | {key: node[key] for key in node if key != "$ref"}
    inner = {key: value for key, value in node.items() if key not in ("default", "properties", "title")}
    plain = {key: _without_defaults(value, definitions) for key, value in inner.items()}
    if "properties" in node:
        fields = node["properties"].items()
        plain["properties"] = {name: _without_defaults(field, definitions, name) for name, field in fields}
    default = node.get("default")
    if default is not None and not isinstance(default, dict):
        text = str(default).lower() if isinstance(default, bool) else default
        plain["description"] = f"{plain.get('description', '')} Default: {text}".strip()
    if title:
        plain["title"] = title
    return _unopened(plain) if plain.get("type") == "boolean" else plain  # a form sends an unticked box as false
