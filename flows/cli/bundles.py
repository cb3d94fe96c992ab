"""`autotailor deploy` and `stress`: install a bundle on its device, or serve it while other processes come and go."""

from dataclasses import replace
from typing import TYPE_CHECKING

from flows.cli.arguments import Arguments
from flows.cli.terminal import Answer, Terminal, TerminalProgress
from flows.config.validate import config_groups, nearest
from tasks.base.errors import UserError

if TYPE_CHECKING:
    from flows.config.bundles import DeployConfig, StressConfig


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


def check_deployed(arguments: Arguments, config: "DeployConfig") -> None:
    """UserError if the config does not have the named device."""
    _refuse_unknown(arguments.words[0], list(config.device))


def _refuse_unknown(device: str, known: list[str]) -> None:
    if device not in known:
        hint = nearest(device, known) or "--config-dir FOLDER has devices of yours in FOLDER/device/"
        raise UserError("deploy", f"'{device}' is no device", allowed=", ".join(known), next_step=hint)


def deploy_bundle(arguments: Arguments, config: "DeployConfig") -> Answer:
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


def check_stressed(arguments: Arguments, config: "StressConfig") -> None:
    """UserError if there is not exactly one device."""
    count = len(arguments.words)
    if count > 1 or (not count and config.stress.bundle is None):
        next_step = "write autotailor stress DEVICE, or stress.bundle=FOLDER"
        raise UserError("stress", f"got {count} devices", allowed="one", next_step=next_step)


def stress_bundle(arguments: Arguments, config: "StressConfig") -> Answer:
    """Serve, query and stress the bundle, show its behaviour, and return it as JSON. AdaptiveError: one line."""
    from flows.config.bundles import bundle_of, devices_with_bundles
    from flows.storage.mirror import exports_here

    device = next(iter(arguments.words), "")
    known = devices_with_bundles(exports_here(config.output_dir, device)) if device else []
    if known and config.stress.bundle is None and device not in known:
        got, hint = f"'{device}' has no bundle in '{config.output_dir}'", nearest(device, known)
        hint = hint or "the run writes it with export.bundle=true"
        raise UserError("stress", got, allowed=", ".join(known), next_step=hint)
    bundle = bundle_of(config.output_dir, device, config.stress.bundle, "stress.bundle")

    from tasks.deploy.stress import run, stress_tables

    with TerminalProgress() as progress:
        report = run(config.stress, bundle, progress)
    Terminal().show(stress_tables(report))
    return report.to_json()
