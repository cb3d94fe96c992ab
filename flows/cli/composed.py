"""The config of a command: composed, shown (`--cfg job`)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from flows.cli.arguments import CLEAN, CONVERTING, DEPLOYING, FLEET, PARTITIONING, STRESSING, Arguments
from flows.config.compose import compose_config, split_sweep
from flows.config.validate import config_groups, nearest, validate
from tasks.base.errors import UserError
from tasks.base.schemas.placed import ChosenSubNet

if TYPE_CHECKING:
    from flows.config import AdaptConfig, RunConfig


def sweep_of(arguments: Arguments) -> list[list[str]]:
    """The overrides of each run of the command."""
    return split_sweep(arguments.overrides) if arguments.multirun else [list(arguments.overrides)]


def composed(overrides: Sequence[str], arguments: Arguments) -> dict[str, Any]:
    """The config, limited to the devices that `--device` or files name: devices of the config, or options of the group."""
    root = "adapt" if arguments.adapts else "config"
    options = config_groups(arguments.config_folder)["device"]
    config = compose_config(root, overrides, arguments.config_folder)
    named = _devices(arguments)
    if not named:
        return config
    free = not any(text.startswith("device=") for text in overrides)
    if free and not named.keys() <= config["device"].keys() and named.keys() <= set(options):
        config = compose_config(root, [*overrides, f"device=[{','.join(named)}]"], arguments.config_folder)
    for name, where in named.items():
        if name not in config["device"]:
            known = [*config["device"], *(option for option in options if option not in config["device"])]
            hint = nearest(name, known) or "device=[A,B] chooses the devices of a run"
            raise UserError(where, f"'{name}' is no device", allowed=", ".join(known), next_step=hint)
    return {**config, "device": {name: config["device"][name] for name in named}}


def _devices(arguments: Arguments) -> dict[str, str]:
    """The devices that a command names, each with the word that names it; empty: all devices of the config."""
    if arguments.device is not None:
        return {arguments.device: "--device"}
    files = arguments.question.files if arguments.question else ()
    return {ChosenSubNet.read(Path(file)).device: f"chosen SubNet '{file}'" for file in files}


def validated(config: Mapping[str, Any], arguments: Arguments) -> "RunConfig | AdaptConfig":
    """The validated config of a command that works stages."""
    from flows.config import AdaptConfig, RunConfig

    model: type[RunConfig | AdaptConfig] = AdaptConfig if arguments.adapts else RunConfig
    found = validate(model, config)
    if arguments.to and len(found.device) > 1:
        got = f"{len(found.device)} devices have a chosen SubNet each"
        raise UserError("--to", got, allowed=", ".join(found.device), next_step="write --device NAME")
    return found


def shown(arguments: Arguments) -> str:
    """The validated config as YAML, or the part that `--package` names; one document for each run of a sweep."""
    if arguments.command == "lut":
        from flows.cli.lut import check, config_of

        check(arguments)
        documents = [config_of(arguments).model_dump(mode="json")]
    elif arguments.command == CONVERTING:
        from flows.cli import convert

        convert.check(arguments)
        documents = [convert.config_of(arguments).model_dump(mode="json")]
    elif arguments.command == PARTITIONING:
        from flows.cli import partition

        documents = [partition.config_of(arguments).model_dump(mode="json")]
    elif arguments.command == DEPLOYING:
        from flows.cli import deploy

        documents = [deploy.config_of(arguments).model_dump(mode="json")]
    elif arguments.command == FLEET:
        from flows.cli import fleet

        fleet.check(arguments)
        documents = [fleet.config_of(arguments).model_dump(mode="json")]
    elif arguments.command == STRESSING:
        from flows.cli import stress

        documents = [stress.config_of(arguments).model_dump(mode="json")]
    elif arguments.command == CLEAN:
        from flows.cli import clean

        documents = [clean.config_of(arguments).model_dump(mode="json")]
    else:
        configs = [composed(overrides, arguments) for overrides in sweep_of(arguments)]
        documents = [
            validated(config, arguments).answering(arguments.question).model_dump(mode="json") for config in configs
        ]
    return "---\n".join(_yaml(document, arguments.package) for document in documents)


def _yaml(document: Mapping[str, Any], package: str | None) -> str:
    if package is None:
        return _dumped(document)
    found: Any = document
    for part in package.split("."):
        if not isinstance(found, dict) or part not in found:
            allowed = ", ".join(found) if isinstance(found, dict) else "nothing below a value"
            hint = nearest(part, found) if isinstance(found, dict) else ""
            raise UserError(f"--package '{package}'", f"there is no '{part}'", allowed=allowed, next_step=hint)
        found = found[part]
    return f"# @package {package}\n{_dumped(found)}"


def _dumped(value: Any) -> str:
    """YAML in the order of the config; a single value without the end-of-document marker."""
    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True)).removesuffix("...\n")
