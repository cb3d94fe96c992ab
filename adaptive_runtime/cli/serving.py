"""`autotailor-runtime serve`: a bundle, or a SubNet over several devices, as a service.

Options name the other devices of a split SubNet, with their addresses, tokens and certificates.
"""

import argparse
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from adaptive_runtime.base.devices import DeviceAddress
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.weight_options import WeightMethod
from adaptive_runtime.bundle.bundles import BUNDLE_FILE, BUNDLE_FORMATS
from adaptive_runtime.server.options import TOKEN_VARIABLE, BundleOptions, ServiceOptions, SplitServiceOptions
from profiling_agents.messages import CODED_BYTES
from profiling_agents.network.endpoint import HOST, add_network, endpoint, positive, read_token
from profiling_agents.sensing.sensors import SYSTEM
from profiling_agents.startup import TOKEN_VARIABLE as AGENT_TOKEN_VARIABLE

if TYPE_CHECKING:
    from adaptive_runtime.server.served import ServedModel


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
        "Other devices run `autotailor agent --serve-segments`. A device that is not reached is no error: the coordinator "
        f"stands in. A device without --device-token has the token of {AGENT_TOKEN_VARIABLE}."
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
        token = read_token(None if file is None else Path(file), AGENT_TOKEN_VARIABLE, where)
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


HELP = "Serve a bundle, or a SubNet over several devices, by the Open Inference Protocol, with metrics and a live page."
PORT = 8080
RISK = "the token, the images and the answers cross the network unencrypted"
BUNDLE_ONLY = (
    "budget_ms",
    "memory_mib",
    "format",
    "key_file",
    "cache",
    "also",
    "state",
    "adapts",
    "policy",
    "decisions",
    "weights",
    "unaligned",
)
"""Options of bundles, by their names in `BundleOptions`; each is None or False unless it is given."""
TCP_ONLY = ("host", "token_file", "tls_cert", "tls_key", "allowed_host", "insecure_bind")
"""Options without a meaning for a Unix socket alone."""
EXACT = "fp32"
"""The coding of tensors of bundles on links."""
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def above_zero(text: str) -> float:
    """A finite number above 0. ValueError."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError
    return value


above_zero.__name__ = "number above 0"


def model_name(text: str) -> str:
    """A name that needs no escaping in an address. ValueError: another name."""
    if not NAME.fullmatch(text):
        raise ValueError
    return text


model_name.__name__ = "name (letters, digits, '_', '.', '-'; at most 64)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument(
        "folder", type=Path, help="with bundle.json; or, with --device, with segments.json and plans.json"
    )
    parser.add_argument("--model-name", type=model_name, default="model", metavar="NAME", help="default: model")
    add_devices(parser, required=False)
    _add_bundle(parser.add_argument_group("bundle"))
    _add_requests(parser.add_argument_group("requests"))
    parser.add_argument(
        "--hit-rate",
        action="store_true",
        help="sense the hit rate of the caches, too: by counters, else by a probe that is calibrated at the start",
    )
    network = add_network(parser, PORT, RISK)
    network.description = (
        f"The token comes from --token-file, else from {TOKEN_VARIABLE}; without either, one is generated and "
        "written to a file that only you can read (its name is printed)."
    )
    network.set_defaults(port=None)  # see `_tcp`
    network.add_argument(
        "--socket",
        type=Path,
        metavar="PATH",
        help="serve programs of your user on this device by a Unix socket, without a token; without --port: by it alone",
    )
    parser.add_argument("--sensors-root", type=Path, default=SYSTEM, metavar="DIR", help=argparse.SUPPRESS)


def _add_bundle(bundle: argparse._ArgumentGroup) -> None:
    bundle.add_argument(
        "--budget-ms", type=above_zero, metavar="MS", help="the most accurate SubNet within it serves first"
    )
    bundle.add_argument(
        "--adapts",
        action="store_true",
        help="while the load changes, the most accurate variant within --budget-ms serves",
    )
    bundle.add_argument(
        "--weights",
        choices=get_args(WeightMethod),
        help="while images drift, the SubNet that serves follows them by its BatchNorm statistics; tent: by gradients, too",
    )
    bundle.add_argument(
        "--unaligned",
        action="store_true",
        help="with --weights: images that drift are not brought back to usual light and details; weights alone follow them",
    )
    bundle.add_argument(
        "--policy",
        metavar="RULES",
        help="as --adapts, by rules: 'battery < 20%% -> energy first; mu by battery' (default: those of the bundle)",
    )
    bundle.add_argument(
        "--decisions", type=Path, metavar="F", help="with --adapts or --policy: append every decision there"
    )
    bundle.add_argument(
        "--memory-mib", type=above_zero, metavar="MIB", help="what SubNets may take (default: no limit)"
    )
    bundle.add_argument(
        "--format",
        choices=BUNDLE_FORMATS,
        help="files that are run; default: all that were measured on the bundle's device",
    )
    bundle.add_argument("--key-file", type=Path, metavar="F", help="secret with which the bundle must be signed")
    bundle.add_argument("--cache", type=Path, metavar="DIR", help="prepared files (default: in the bundle's folder)")
    bundle.add_argument(
        "--also",
        type=Path,
        metavar="DIR",
        help="folder of a search on this device, whose SubNets serve, too, as soon as it has found them",
    )
    bundle.add_argument(
        "--state",
        type=Path,
        metavar="DIR",
        help="remember there what serves and adapts, and go on with it after a restart",
    )


def _add_requests(requests: argparse._ArgumentGroup) -> None:
    requests.add_argument(
        "--queue", type=positive, default=64, help="requests that may wait (default 64); more get 429"
    )
    requests.add_argument("--workers", type=positive, default=1, help="requests that run at once (default 1)")
    requests.add_argument(
        "--deadline-ms", type=above_zero, default=1000.0, metavar="MS", help="of requests that name none (default 1000)"
    )
    requests.add_argument(
        "--max-body-mib", type=positive, default=8, metavar="MIB", help="size of a request (default 8); more gets 413"
    )
    requests.add_argument(
        "--niceness",
        type=int,
        metavar="N",
        help="of the service: below 0 it goes before other programs, which takes a right (default: as it was started)",
    )
    requests.add_argument(
        "--load-trace",
        type=Path,
        metavar="F",
        help="record there the load of the device and the requests of the last hour, for autotailor stress",
    )


def run(arguments: argparse.Namespace) -> None:
    """Serve until stopped. AdaptiveError, AgentError: it cannot start."""
    from adaptive_runtime.server.running import serve

    tcp = _tcp(arguments)
    options = ServiceOptions(
        network=endpoint(arguments, TOKEN_VARIABLE),
        tcp=tcp,
        socket=arguments.socket,
        model_name=arguments.model_name,
        queue=arguments.queue,
        workers=arguments.workers,
        deadline_ms=arguments.deadline_ms,
        max_body_mib=arguments.max_body_mib,
        load_trace=arguments.load_trace,
        niceness=arguments.niceness,
    )
    is_split = arguments.device and not (arguments.folder / BUNDLE_FILE).exists()
    serve(options, _split(arguments) if is_split else _bundle(arguments))


def _tcp(arguments: argparse.Namespace) -> bool:
    """Whether the service listens on a port, too; a missing port is set. AdaptiveError: an option that needs a port."""
    if arguments.port is not None:
        return True
    arguments.port = PORT
    if arguments.socket is None:
        return True
    for name in TCP_ONLY:
        if getattr(arguments, name) not in (None, False, [], HOST):
            option = f"--{name.replace('_', '-')}"
            raise AdaptiveError(option, "is for clients by TCP, and --socket has none", next_step="give --port, too")
    return False


def _bundle(arguments: argparse.Namespace) -> "AbstractContextManager[ServedModel]":
    """The served bundle.

    AdaptiveError: a coding, since a bundle defines the coding its SubNets were judged in, or an option without the option it
    needs.
    """
    from adaptive_runtime.server.bundles import bundle_served

    given = {name: getattr(arguments, name) for name in BUNDLE_ONLY}
    sensed = {"sensors_root": arguments.sensors_root, "hit_rate": arguments.hit_rate}
    if arguments.coding != EXACT:
        raise AdaptiveError(
            f"--coding {arguments.coding}", "is not of bundles", allowed=EXACT, next_step="export with partition.coding"
        )
    if arguments.unaligned and arguments.weights is None:
        raise AdaptiveError("--unaligned", "no weights adapt", next_step="give --weights, or leave it out")
    if arguments.decisions is not None and not arguments.adapts and arguments.policy is None:
        raise AdaptiveError("--decisions", "nothing decides", next_step="give --adapts or --policy, or leave it out")
    return bundle_served(BundleOptions(bundle=arguments.folder, devices=addresses(arguments), **sensed, **given))


def _split(arguments: argparse.Namespace) -> "AbstractContextManager[ServedModel]":
    """The served split SubNet. AdaptiveError: an option that only bundles have."""
    from adaptive_runtime.server.splits import split_served

    for name in BUNDLE_ONLY:
        if getattr(arguments, name) not in (None, False):
            option = f"--{name.replace('_', '-')}"
            raise AdaptiveError(option, "is of bundles", next_step="leave it out with --device")
    return split_served(
        SplitServiceOptions(
            folder=arguments.folder,
            devices=addresses(arguments),
            coding=arguments.coding,
            sensors_root=arguments.sensors_root,
            hit_rate=arguments.hit_rate,
        )
    )
