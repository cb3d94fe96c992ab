"""`autotailor-runtime serve`: a bundle as a service."""

import argparse
import re
from pathlib import Path

from adaptive_runtime.service.options import TOKEN_VARIABLE, ServiceOptions
from profiling_agents.network.arguments import add_network, endpoint, positive
from profiling_agents.sensing.sensors import SYSTEM

HELP = "Serve a bundle by the Open Inference Protocol, with metrics and a live page."
PORT = 8080
RISK = "the token, the images and the answers cross the network unencrypted"
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def above_zero(text: str) -> float:
    """A finite number above 0. ValueError."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError
    return value


above_zero.__name__ = "number above 0"


def model_name(text: str) -> str:
    """A name that stands in an address as it is. ValueError."""
    if not NAME.fullmatch(text):
        raise ValueError
    return text


model_name.__name__ = "name (letters, digits, '_', '.', '-'; at most 64)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("bundle", type=Path, help="folder with bundle.json")
    parser.add_argument("--model-name", type=model_name, default="model", metavar="NAME", help="default: model")
    parser.add_argument(
        "--budget-ms", type=above_zero, metavar="MS", help="the most accurate SubNet within it serves first"
    )
    parser.add_argument(
        "--adapts",
        action="store_true",
        help="while the load changes, the most accurate variant within --budget-ms serves",
    )
    parser.add_argument("--decisions", type=Path, metavar="F", help="with --adapts: append every decision there")
    parser.add_argument(
        "--memory-mib", type=above_zero, metavar="MIB", help="what SubNets may take (default: no limit)"
    )
    parser.add_argument(
        "--format", choices=("onnx", "ncnn"), help="files that are run; default: those of the bundle's device"
    )
    parser.add_argument("--key-file", type=Path, metavar="F", help="secret with which the bundle must be signed")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="prepared files (default: in the bundle's folder)")
    parser.add_argument(
        "--also", type=Path, metavar="DIR", help="folder of a search on this device, whose SubNets serve, too"
    )
    parser.add_argument(
        "--state", type=Path, metavar="DIR", help="remember there what serves, and go on with it after a restart"
    )
    requests = parser.add_argument_group("requests")
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
    network = add_network(parser, PORT, RISK)
    network.description = (
        f"The token comes from --token-file, else from {TOKEN_VARIABLE}; without either, one is generated and "
        "written to a file that only you can read (its name is printed)."
    )
    parser.add_argument("--sensors-root", type=Path, default=SYSTEM, metavar="DIR", help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> None:
    """Serve until stopped. AdaptiveError, AgentError: it cannot start."""
    from adaptive_runtime.service.running import serve

    serve(
        ServiceOptions(
            bundle=arguments.bundle,
            network=endpoint(arguments, TOKEN_VARIABLE),
            model_name=arguments.model_name,
            budget_ms=arguments.budget_ms,
            memory_mib=arguments.memory_mib,
            format=arguments.format,
            key_file=arguments.key_file,
            cache=arguments.cache,
            also=arguments.also,
            queue=arguments.queue,
            workers=arguments.workers,
            deadline_ms=arguments.deadline_ms,
            max_body_mib=arguments.max_body_mib,
            state=arguments.state,
            adapts=arguments.adapts,
            decisions=arguments.decisions,
            sensors_root=arguments.sensors_root,
        )
    )
