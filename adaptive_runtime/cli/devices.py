"""The other devices of a split SubNet, as options: names, addresses, tokens and certificates."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from adaptive_runtime.base.devices import DeviceAddress
from adaptive_runtime.base.errors import AdaptiveError
from profiling_agents.messages import CODED_BYTES
from profiling_agents.network.tokens import read_token
from profiling_agents.startup import TOKEN_VARIABLE


def named(text: str) -> tuple[str, str]:
    """Split NAME=VALUE into name and value. ValueError: other text."""
    name, sign, value = text.partition("=")
    if not (name and sign and value):
        raise ValueError
    return name, value


named.__name__ = "NAME=VALUE"


def add_devices(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add the options that `addresses` reads, and the coding of tensors."""
    devices = parser.add_argument_group("devices")
    devices.description = (
        "Other devices run `autotailor agent --serve-segments`. A device that is not reached is no error: home stands in. "
        f"A device without --device-token has the token of {TOKEN_VARIABLE}."
    )
    for option, value, text in (
        ("--device", "HOST:PORT", "a device by its name in the plans; may be repeated; tls:// before HOST: by TLS"),
        ("--device-token", "FILE", "file with the token of a device, readable by you only"),
        ("--device-ca", "FILE", "certificate (PEM) that a device is checked against (default: those of the system)"),
    ):
        must, form = required and option == "--device", f"NAME={value}"
        devices.add_argument(option, type=named, action="append", default=[], required=must, metavar=form, help=text)
    devices.add_argument(
        "--coding", choices=sorted(CODED_BYTES), default="fp32", help="of tensors that cross links (default fp32)"
    )


def addresses(arguments: argparse.Namespace) -> dict[str, DeviceAddress]:
    """The devices by name. AdaptiveError, AgentError: a duplicate name, no token, or an invalid address."""
    urls = _once("--device", arguments.device)
    tokens = _of_devices("--device-token", arguments.device_token, urls)
    certificates = _of_devices("--device-ca", arguments.device_ca, urls)
    found = {}
    for name, given in urls.items():
        file = tokens.get(name)
        where = f"--device-token {name}"
        token = read_token(None if file is None else Path(file), TOKEN_VARIABLE, where)
        if token is None:
            raise AdaptiveError(f"device '{name}'", "has no token", next_step=f"give --device-token {name}=FILE")
        certificate = certificates.get(name)
        url = given if "://" in given else f"tcp://{given}"
        found[name] = DeviceAddress(url=url, token=token, ca_file=None if certificate is None else Path(certificate))
        found[name].check()
    return found


def _once(option: str, pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Values by name. AdaptiveError: a duplicate name."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name in found if [one for one, _ in pairs].count(name) > 1)
        raise AdaptiveError(f"{option} {twice}", "given twice", allowed="once")
    return found


def _of_devices(option: str, pairs: Sequence[tuple[str, str]], urls: dict[str, str]) -> dict[str, str]:
    """Values by name. AdaptiveError: a name that no `--device` has."""
    found = _once(option, pairs)
    for name in found:
        if name not in urls:
            raise AdaptiveError(f"{option} {name}", "no --device has this name", allowed=", ".join(urls) or "none")
    return found
