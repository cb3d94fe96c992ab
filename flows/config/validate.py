"""pydantic errors as one line: place, value, allowed values, next step; and the names and short forms that can be given."""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

import conf
from tasks.base.earlier import gone
from tasks.base.errors import UserError
from tasks.base.own_code import is_function_name

MOST_NAMED = 5
SEE_HELP = "see 'autotailor --help'"
NETWORKS = "an .onnx file, FILE.py:function, or a name of timm"
Model = TypeVar("Model", bound=BaseModel)

ALLOWED = {
    "greater_than": "greater than {gt:g}",
    "greater_than_equal": "{ge:g} or more",
    "less_than": "less than {lt:g}",
    "less_than_equal": "{le:g} or less",
    "finite_number": "a finite number",
    "int_parsing": "an integer",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_parsing": "a number",
    "float_type": "a number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "text",
    "path_type": "a path",
    "tuple_type": "a list [a,b,…]",
    "list_type": "a list [a,b,…]",
    "dict_type": "a mapping {{name: value}}",
    "model_type": "a mapping {{name: value}}",
    "literal_error": "{expected}",
    "too_short": "{min_length} or more entries",
}


def validate(model: type[Model], config: Mapping[str, Any]) -> Model:
    """Validate `config` as a `model`; UserError names the faults, at most the first few."""
    try:
        return model.model_validate(config)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        described = list(dict.fromkeys(str(_explain(model, dict(fault))) for fault in _different(faults)))
        first, more = described[0], described[1:MOST_NAMED]
        left = len(described) - MOST_NAMED
        others = f"; also: {'; also: '.join(more)}" if more else ""
        where, _, got = first.partition(": ")
        raise UserError(where, got + others + (f"; and {left} more" if left > 0 else "")) from error


def _different(faults: Sequence[Any]) -> Iterator[Any]:
    """The faults without repetitions for one value: each choice of a union complains about it in its own way."""
    seen: list[tuple[Any, ...]] = []
    for fault in faults:
        place = fault["loc"]
        if not any(place[: len(one)] == one for one in seen):
            seen.append(place)
            yield fault


def _explain(model: type[BaseModel], fault: dict[str, Any]) -> UserError:
    where = ".".join(str(part) for part in fault["loc"]) or "config"
    kind, context = fault["type"], fault.get("ctx", {})
    if kind == "extra_forbidden":
        if known := gone("option", where):
            return known
        options = _options(model, fault["loc"][:-1])
        hint = nearest(str(fault["loc"][-1]), options) or SEE_HELP
        return UserError(f"option '{where}'", "is unknown", allowed=", ".join(options), next_step=hint)
    if kind == "missing":
        return UserError(where, "has no value", next_step=f"give one: {where}=…")
    if kind == "value_error":
        return UserError(where, f"{context['error']}", next_step=SEE_HELP)
    allowed = ALLOWED[kind].format(**context) if kind in ALLOWED else fault["msg"]
    return UserError(where, f"got {fault['input']!r}", allowed=allowed)


def _options(model: type[BaseModel], path: tuple[Any, ...]) -> list[str]:
    """Field names of the model at `path`; mapping keys in the path match any entry."""
    current: Any = model
    for part in path:
        if isinstance(current, type) and issubclass(current, BaseModel):
            current = current.model_fields[part].annotation if part in current.model_fields else None
        else:
            current = next((inner for inner in getattr(current, "__args__", ()) if _is_model(inner)), None)
    if not _is_model(current):
        current = next((inner for inner in getattr(current, "__args__", ()) if _is_model(inner)), None)
    return [*current.model_fields] if current else []


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def config_groups(own: Path | None = None) -> dict[str, list[str]]:
    """Group name -> its options, including those of the user's own folder (`--config-dir`)."""
    options: dict[str, set[str]] = {}
    for root in (Path(conf.__path__[0]), *([own] if own else [])):
        for file in root.glob("*/*.yaml"):
            options.setdefault(file.parent.name, set()).add(file.stem)
    return {group: sorted(options[group]) for group in sorted(options)}


def nearest(name: str, options: Iterable[str]) -> str:
    """`did you mean '…'?` or an empty string."""
    close = difflib.get_close_matches(name, list(options), n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else ""


def _is_function(name: str) -> bool:
    """Whether it is the name of a function; names of networks at a hub have a colon, too."""
    return is_function_name(name) and name.rpartition(":")[2].isidentifier()


def of_network(network: str) -> list[str]:
    """The options of a network: an .onnx file, FILE.py:function or module:function that gives a trained one, a name of timm."""
    if network.endswith(".onnx"):
        return ["model=onnx", f"model.path='{network}'"]
    if _is_function(network):
        return ["model=callable", f"model.name='{network}'", "model.trained=true"]
    if Path(network).exists():
        raise UserError("network", f"got '{network}'", allowed=NETWORKS, next_step="export it to ONNX")
    return ["model=timm", f"model.name='{network}'"]


def of_samples(place: str) -> list[str]:
    """The options of samples: FILE.py:function or module:function that gives them, or a path of samples without labels."""
    if _is_function(place):
        return ["data=own", f"data.name='{place}'"]
    return ["data=unlabelled", f"data.path='{place}'"]
