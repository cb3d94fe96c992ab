"""`autotailor deploy`: install a bundle and the runtime on a device."""

from dataclasses import replace
from typing import TYPE_CHECKING

from flows.cli.arguments import Arguments
from flows.cli.terminal import Answer, Terminal
from flows.config.validate import config_groups, nearest
from tasks.base.errors import UserError

if TYPE_CHECKING:
    from flows.config import DeployConfig


def with_device(arguments: Arguments) -> Arguments:
    """The arguments with the option of the named device. UserError if it is unknown, or not exactly one is named."""
    if len(arguments.words) != 1:
        got = f"got {len(arguments.words)} devices"
        raise UserError("deploy", got, allowed="one", next_step="write autotailor deploy DEVICE")
    if any(text.startswith("device=") for text in arguments.overrides):
        return arguments
    (device,) = arguments.words
    _refuse_unknown(device, config_groups(arguments.config_folder)["device"])
    return replace(arguments, overrides=(*arguments.overrides, f"device=[{device}]"))


def check(arguments: Arguments, config: "DeployConfig") -> None:
    """UserError if the config does not have the named device."""
    _refuse_unknown(arguments.words[0], list(config.device))


def execute(arguments: Arguments, config: "DeployConfig") -> Answer:
    """Deploy, show the result, and return it as JSON. AdaptiveError, AgentError: one line about the problem."""
    from flows.machine import prepare
    from flows.machine.server import start_server

    (device,) = arguments.words
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
        raise UserError("deploy", f"'{device}' is no device", allowed=", ".join(known), next_step=hint)
