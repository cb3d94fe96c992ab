"""Compose a configuration with Hydra, once, at the entry point; every error becomes one line.

Hydra keeps global state, so nothing below a flow may compose. The result is a plain mapping that pydantic validates.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from flows.config.own_files import SCHEME
from flows.config.validate import SEE_HELP, config_groups, nearest
from tasks.base.earlier import gone, override_now
from tasks.base.errors import UserError, shortened

CONFIG_MODULE = "conf"
WITH_DEVICES = ("config", "retarget", "deploy")
INSTANTIATION_KEYS = ("_target_", "_partial_", "_recursive_", "_convert_", "_args_")
NO_CLASSES = "configs never name classes to build; remove it"
FREE_MAPPINGS = re.compile(
    r"(model\.(options|constants|states)|data\.options|pretraining\.space|baselines\.files|export\.shared_bundle"
    r"|runtime_options\.fixed|partition\.(links|slow_down|memory_mib)"
    r"|device\.[^.=]+\.(runtime_options|engine|measure|subnet|resources|ssh\.options))[.=]"
)
SELECTOR = re.compile(r"\+{0,2}space\.([^=]+)=(.*)", re.DOTALL)  # Hydra must not parse *, [ and ]
Groups = dict[str, list[str]]


def compose_config(root: str, overrides: Sequence[str], config_folder: Path | None = None) -> dict[str, Any]:
    """The resolved mapping of `conf/<root>.yaml` under `overrides`. UserError if Hydra does not accept it."""
    overrides = [override_now(text) for text in overrides]
    parsed = parse_overrides(overrides)
    for override, text in zip(parsed, overrides, strict=True):
        _check_override(override, text)
    selectors = {m[1]: o.value() for o, text in zip(parsed, overrides, strict=True) if (m := SELECTOR.fullmatch(text))}
    others = [f"++{text}" if FREE_MAPPINGS.match(text) else text for text in overrides if not SELECTOR.fullmatch(text)]
    search = [f"hydra.searchpath=[{SCHEME}://{config_folder.resolve()}]"] if config_folder else []
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module(CONFIG_MODULE, version_base="1.3"):
            config = _compose(root, others, search, config_groups(config_folder))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(error, config_folder) from error
    finally:
        GlobalHydra.instance().clear()
    return _with_selectors(config, selectors) if selectors else config


def _unreadable(error: Exception, config_folder: Path | None) -> UserError:
    """The line for an invalid YAML file, with the position that the parser reports."""
    mark = getattr(error, "problem_mark", None)
    place = "" if mark is None else f"{mark.name}:{mark.line + 1}: "
    known = "nested too deep" if isinstance(error, RecursionError) else shortened(error)
    reason = getattr(error, "problem", None) or known
    where = "config" if config_folder is None else f"--config-dir '{config_folder}'"
    return UserError(where, f"{place}no readable YAML ({reason})", next_step="mend the file")


def _with_selectors(config: dict[str, Any], selectors: dict[str, Any]) -> dict[str, Any]:
    """`space` with the command line's selectors, which come last and replace those of a file."""
    if "space" not in config:
        raise _unknown_key(f"space.{next(iter(selectors))}", (), config)
    files = {name: choices for name, choices in (config["space"] or {}).items() if name not in selectors}
    return {**config, "space": files | selectors}


def _compose(root: str, overrides: Sequence[str], search: list[str], groups: Groups) -> dict[str, Any]:
    try:
        composed = compose(root, overrides=[*overrides, *search])
        container = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException) as error:
        known = OmegaConf.to_container(compose(root, overrides=search), resolve=False)
        raise _explain(str(error), overrides, known, groups) from error
    assert isinstance(container, dict)
    config = {str(key): value for key, value in container.items()}
    if root in WITH_DEVICES:
        config = {"device": {}} | config  # Hydra drops the group for device=[]
    refuse_instantiation(config)
    return config


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Overrides parsed by Hydra (of selectors only the value); UserError names the first that is not `key=value`."""
    parser = OverridesParser.create()
    parsed: list[Override] = []
    for text in overrides:
        try:
            selector = SELECTOR.fullmatch(text)
            parsed.extend(parser.parse_overrides([f"space={selector[2]}" if selector else text]))
        except HydraException as error:
            reason = str(error).splitlines()[-2:][0]
            hint = "quote a value that holds '=', ',' or spaces: key='value'"
            got = f"cannot be read ({reason})"
            raise UserError(f"option '{text}'", got, allowed="key=value", next_step=hint) from error
    return parsed


def split_sweep(overrides: Sequence[str]) -> list[list[str]]:
    """One override list per combination of the comma choices and ranges, in Hydra's order (`--multirun`)."""
    axes = []
    for override, text in zip(parse_overrides(overrides), overrides, strict=True):
        if override.is_choice_sweep() or override.is_range_sweep():
            selector = SELECTOR.fullmatch(text)
            key = f"space.{selector[1]}" if selector else override.get_key_element()
            axes.append([f"{key}={value}" for value in override.sweep_string_iterator()])
        elif override.is_sweep_override():
            raise UserError(f"option '{text}'", "this kind of sweep has no fixed choices", allowed="a,b,c or range(…)")
        else:
            axes.append([text])
    return [list(combination) for combination in itertools.product(*axes)]


def refuse_instantiation(value: Any, where: str = "config") -> None:
    """UserError if a mapping anywhere inside asks to instantiate a class: names are looked up, never imported."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if str(key) in INSTANTIATION_KEYS:
                raise UserError(where, f"has '{key}'", next_step=NO_CLASSES)
            refuse_instantiation(inner, f"{where}.{key}" if where != "config" else str(key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            refuse_instantiation(inner, f"{where}[{index}]")


def _check_override(override: Override, text: str) -> None:
    key = text.split("=", 1)[0].lstrip("+") if SELECTOR.fullmatch(text) else override.key_or_group
    if any(part in INSTANTIATION_KEYS for part in key.split(".")):
        raise UserError(f"option '{text}'", f"has '{key.rsplit('.', 1)[-1]}'", next_step=NO_CLASSES)
    refuse_instantiation(override.value(), key)
    if key == "hydra" or key.startswith(("hydra.", "hydra/")):
        raise UserError(f"option '{text}'", "Hydra's own settings are not options here", next_step=SEE_HELP)
    if override.is_sweep_override():
        hint = "a list is written key=[a,b]; to run every choice, add --multirun"
        raise UserError(f"option '{text}'", "has several values", allowed="one value", next_step=hint)


def _explain(message: str, overrides: Sequence[str], known: Any, groups: Groups) -> UserError:
    """The line for an error of Hydra or OmegaConf."""
    if match := re.search(r"Could not (?:find|load) '([^']+)/([^'/]+)'", message):
        group, name = match.groups()
        options = groups.get(group, [])
        hint = nearest(name, options) or SEE_HELP
        return UserError(group, f"'{name}' is no option", allowed=", ".join(options), next_step=hint)
    if match := re.search(r"Could not (?:override|delete) '([^']+)'", message):
        return _unknown_key(match.group(1), overrides, known)
    if match := re.search(r"Missing mandatory value: (\S+)", message):
        full = re.search(r"full_key: (\S+)", message)
        key = full.group(1) if full else match.group(1)
        return UserError(key, "has no value", next_step=f"give one: {key}=…")
    lines = [line for line in message.splitlines() if line.strip()]
    key = next((line.split(":", 1)[1].strip() for line in lines if "full_key:" in line), "")
    culprit = next((text for text in overrides if key and text.lstrip("+").startswith(f"{key}=")), key or "config")
    return UserError(f"option '{culprit}'" if culprit != "config" else culprit, lines[0], next_step=SEE_HELP)


def _unknown_key(key: str, overrides: Sequence[str], known: Any) -> UserError:
    if line := gone("option", key):
        return line
    groups = config_groups()
    if key in groups:
        text = next((text for text in overrides if text.startswith(f"{key}=")), f"{key}=…")
        return UserError(f"option '{text}'", f"'{key}' is not among the defaults", next_step=f"write +{text}")
    parent = key.rpartition(".")[0]
    while not isinstance(_at(known, parent), dict):
        parent = parent.rpartition(".")[0]
    allowed = ", ".join(map(str, _at(known, parent)))
    hint = nearest(key, [*_dotted(known), *groups]) or SEE_HELP
    return UserError(f"option '{key}'", "is unknown", allowed=allowed, next_step=hint)


def _at(value: Any, dotted: str) -> Any:
    for part in filter(None, dotted.split(".")):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _dotted(value: Any, prefix: str = "") -> Iterator[str]:
    if prefix:
        yield prefix
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _dotted(inner, f"{prefix}.{key}" if prefix else str(key))
