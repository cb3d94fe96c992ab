"""The config of a command: composed, shown (`--cfg job`)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from flows.cli.arguments import Arguments, check_action
from flows.cli.words import COMMANDS, loaded
from flows.config.compose import compose_config, split_sweep
from flows.config.validate import config_groups, nearest, validate
from tasks.base.errors import UserError
from tasks.base.schemas.placed import ChosenSubNet

if TYPE_CHECKING:
    from flows.config import RetargetConfig, RunConfig


def sweep_of(arguments: Arguments) -> list[list[str]]:
    """The overrides of each run of the command."""
    return split_sweep(arguments.overrides) if arguments.multirun else [list(arguments.overrides)]


def composed(overrides: Sequence[str], arguments: Arguments) -> dict[str, Any]:
    """The config, limited to the devices that `--device` or files name: devices of the config, or options of the group."""
    root = "retarget" if arguments.retargets else "config"
    options = config_groups(arguments.config_folder)["device"]
    config = compose_config(root, overrides, arguments.config_folder)
    if arguments.device is not None:
        named = {arguments.device: "--device"}
    else:
        files = arguments.question.files if arguments.question else ()
        named = {ChosenSubNet.read(Path(file)).device: f"chosen SubNet '{file}'" for file in files}
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


def validated(config: Mapping[str, Any], arguments: Arguments) -> "RunConfig | RetargetConfig":
    """The validated config of a command that works stages."""
    from flows.config import RetargetConfig, RunConfig

    model: type[RunConfig | RetargetConfig] = RetargetConfig if arguments.retargets else RunConfig
    found = validate(model, config)
    if arguments.to and len(found.device) > 1:
        got = f"{len(found.device)} devices have a chosen SubNet each"
        raise UserError("--to", got, allowed=", ".join(found.device), next_step="write --device NAME")
    return found


def config_of(arguments: Arguments) -> Any:
    """The validated config of a command that works no stage. UserError for words and options that it does not take."""
    command = COMMANDS[arguments.command]
    if command.actions:
        check_action(arguments)
    if command.check:
        arguments = loaded(command.check)(arguments)
    options = compose_config(arguments.command, arguments.overrides, arguments.config_folder)
    config = validate(loaded(command.config), options)
    if command.check_config:
        loaded(command.check_config)(arguments, config)
    return config


def shown(arguments: Arguments) -> str:
    """The validated config as YAML, or the part that `--package` names; one document for each run of a sweep."""
    if COMMANDS[arguments.command].config:
        configs: list[Any] = [config_of(arguments)]
    else:
        found = [composed(overrides, arguments) for overrides in sweep_of(arguments)]
        configs = [validated(config, arguments).answering(arguments.question) for config in found]
    return "---\n".join(_yaml(config.model_dump(mode="json"), arguments.package) for config in configs)


def _yaml(document: Mapping[str, Any], package: str | None) -> str:
    """YAML in the order of the config; a single value without the end-of-document marker."""
    found: Any = document
    for part in () if package is None else package.split("."):
        if not isinstance(found, dict) or part not in found:
            allowed = ", ".join(found) if isinstance(found, dict) else "nothing below a value"
            hint = nearest(part, found) if isinstance(found, dict) else ""
            raise UserError(f"--package '{package}'", f"there is no '{part}'", allowed=allowed, next_step=hint)
        found = found[part]
    text = str(yaml.safe_dump(found, sort_keys=False, allow_unicode=True)).removesuffix("...\n")
    return text if package is None else f"# @package {package}\n{text}"
