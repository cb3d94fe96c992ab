"""`autotailor deploy`: install a bundle and the runtime on a device."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flows.cli.arguments import DEPLOYING, Arguments
from flows.cli.terminal import Terminal
from flows.config.compose import compose_config
from flows.config.validate import config_groups, nearest, validate
from tasks.base.errors import UserError

if TYPE_CHECKING:
    from flows.config import DeployConfig

DeployAnswer = Mapping[str, Any]
"""The JSON of `--json`: `tasks.deploy.Deployed`."""


def check(arguments: Arguments) -> str:
    """The device. UserError if the words are not exactly one name."""
    if len(arguments.words) != 1:
        got = f"got {len(arguments.words)} devices"
        raise UserError(DEPLOYING, got, allowed="one", next_step=f"write autotailor {DEPLOYING} DEVICE")
    return arguments.words[0]


def config_of(arguments: Arguments) -> "DeployConfig":
    """The validated config, with the named device. UserError if the device is unknown."""
    from flows.config import DeployConfig

    device, overrides = check(arguments), list(arguments.overrides)
    options = config_groups(arguments.config_folder)["device"]
    if not any(text.startswith("device=") for text in overrides):
        _refuse_unknown(device, options)
        overrides.append(f"device=[{device}]")
    config = validate(DeployConfig, compose_config(DEPLOYING, overrides, arguments.config_folder))
    _refuse_unknown(device, list(config.device))
    return config


def execute(arguments: Arguments) -> DeployAnswer:
    """Deploy, show the result, and return it as JSON. AdaptiveError, AgentError: one line about the problem."""
    from flows.machine import prepare
    from flows.machine.server import start_server

    config, device = config_of(arguments), check(arguments)
    config.bundle_of(device)
    prepare(quiet=True)
    wait_until_ready = start_server()

    from flows.operations import deploy

    wait_until_ready()
    found = deploy(config, device)
    terminal = Terminal()
    terminal.say(f"release {found['release']} in '{found['folder']}' of '{device}'")
    if found["address"] is not None:
        token = "" if found["address"].startswith("unix:") else "; its token is on the device"
        terminal.say(f"serves at {found['address']} ({found['by']}){token}")
    return found


def _refuse_unknown(device: str, known: list[str]) -> None:
    if device not in known:
        hint = nearest(device, known) or "--config-dir FOLDER has devices of yours in FOLDER/device/"
        raise UserError(DEPLOYING, f"'{device}' is no device", allowed=", ".join(known), next_step=hint)
