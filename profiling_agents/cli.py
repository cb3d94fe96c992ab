"""`autotailor agent` and `autotailor relay`: command lines of the device-side services, with their arguments.

The exit code is 0, or 2 with one clear line.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import get_args

from profiling_agents.backends import BACKENDS
from profiling_agents.execution.settings import ModelLimits
from profiling_agents.lines import full_disk
from profiling_agents.messages import AgentError, Precision
from profiling_agents.network.endpoint import ServiceParser, add_network, endpoint, peer_address, positive
from profiling_agents.sensing.machine import memory_mib
from profiling_agents.startup import TOKEN_VARIABLE

MIN_MEMORY_LIMIT_MIB = 256
MAX_MEMORY_LIMIT_MIB = 8192
MOST_SUBNETS = 16
"""Default limit of the SubNets whose segments are served at once."""
RISK = (
    "the token and the models cross the network unencrypted, and whoever reads them there can use the agent to run "
    "models on its device"
)

EPILOG = f"""\
The token comes from --token-file, else from {TOKEN_VARIABLE}; without either, one is generated and written
to a file that only you can read (its name is printed).

examples:
  autotailor agent --backend ncnn
  autotailor agent --backend ncnn --precision bf16
  autotailor agent --backend onnxruntime --threads 4 --cores 4,5,6,7 --port 8766 --token-file token
  autotailor agent --backend ncnn --pull https://desk:8764 --token-file token --ca-file cert.pem
  autotailor agent --backend onnxruntime --serve-segments --port 8767 --token-file token
  autotailor agent --backend ncnn --host 192.168.1.20 --tls-cert cert.pem --tls-key key.pem --token-file token
"""


RELAY_EPILOG = """\
example, on a machine that the device and the clients can dial:
  autotailor relay --host 192.168.1.10 --tls-cert cert.pem --tls-key key.pem --token-file token
"""


def _memory_mib(text: str) -> int:
    value = int(text)
    if value < MIN_MEMORY_LIMIT_MIB:
        raise ValueError
    return value


_memory_mib.__name__ = f"memory limit (at least {MIN_MEMORY_LIMIT_MIB})"


def _cores(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


_cores.__name__ = "comma-separated list of core numbers"


def _folder(text: str) -> Path:
    path = Path(text).absolute()
    if not path.is_dir():
        raise ValueError
    return path


_folder.__name__ = "folder"


def agent_parser(prog: str) -> argparse.ArgumentParser:
    """Arguments of `autotailor agent`."""
    parser = ServiceParser(
        prog=prog,
        description="Measure and run models on this device, for clients that show the token.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_runtime(parser)
    network = add_network(parser, port=8765, risk=RISK)
    network.add_argument(
        "--pull",
        metavar="URL",
        help="listen to nobody and fetch work from this 'autotailor relay', for devices that cannot be dialled",
    )
    network.add_argument(
        "--serve-segments",
        action="store_true",
        help="measure nothing; serve segments of SubNets to coordinators that split a network over devices",
    )
    network.add_argument(
        "--max-subnets",
        type=positive,
        default=MOST_SUBNETS,
        metavar="N",
        help=f"with --serve-segments: SubNets at once, each a process; others are refused (default {MOST_SUBNETS})",
    )
    network.add_argument(
        "--allow-peer",
        action="append",
        type=peer_address,
        default=[],
        metavar="HOST:PORT",
        help="with --serve-segments: another device to which coordinators may have values sent straight from here; may be "
        "repeated (default: none, and values go through the coordinator)",
    )
    network.add_argument(
        "--ca-file",
        type=Path,
        metavar="F",
        help="certificate (PEM) that the relay, or another device, is checked against",
    )
    _add_limits(parser)
    return parser


def _add_runtime(parser: argparse.ArgumentParser) -> None:
    runtime = parser.add_argument_group("runtime")
    runtime.add_argument("--backend", required=True, choices=sorted(BACKENDS), help="inference runtime")
    runtime.add_argument("--threads", type=positive, default=1, help="threads of the runtime (default 1)")
    runtime.add_argument(
        "--precision",
        choices=get_args(Precision),
        default="fp32",
        help="what the runtime stores and computes in; refused where it cannot (default fp32)",
    )
    runtime.add_argument(
        "--provider",
        metavar="P",
        help="what computes: for onnxruntime an execution provider, for torch cpu or cuda (default: the CPU)",
    )
    runtime.add_argument(
        "--cores", type=_cores, metavar="0,1", help="bind to these cores (default: free ones, from the last)"
    )
    runtime.add_argument(
        "--pin-mhz",
        type=positive,
        metavar="MHZ",
        help="keep the cores at this frequency until the agent ends; takes root (default: as shipped)",
    )
    runtime.add_argument(
        "--sensors-root",
        type=_folder,
        default=Path("/"),
        metavar="DIR",
        help="where the device's /sys with its power sensors (and cores) is, for a container that has it mounted (default /)",
    )


class _WithoutWalls(argparse.Action):
    """The former name of `--without-sandbox`: it does the same, and a line says how it is called now."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest, nargs=0, default=False, help=help)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, True)
        print(f"{parser.prog}: {option_string} is now called --without-sandbox", file=sys.stderr, flush=True)


def _add_limits(parser: argparse.ArgumentParser) -> None:
    memory_limit_mib = max(MIN_MEMORY_LIMIT_MIB, min(MAX_MEMORY_LIMIT_MIB, memory_mib() // 2))
    limits = parser.add_argument_group("limits for each model (its process is killed beyond them)")
    limits.add_argument(
        "--memory-limit-mib",
        type=_memory_mib,
        default=memory_limit_mib,
        help=f"address space beyond what the runtime itself takes (default {memory_limit_mib})",
    )
    limits.add_argument("--cpu-limit-s", type=positive, default=120, help="CPU time (default 120)")
    limits.add_argument("--wall-limit-s", type=positive, default=60, help="wall-clock time (default 60)")
    limits.add_argument("--max-model-mib", type=positive, default=512, help="size of an upload (default 512)")
    limits.add_argument(
        "--without-sandbox",
        action="store_true",
        help="let models do what your user can, where a driver does not start otherwise; for models of your own only",
    )
    limits.add_argument("--without-walls", dest="without_sandbox", action=_WithoutWalls, help=argparse.SUPPRESS)


def relay_parser(prog: str) -> argparse.ArgumentParser:
    """Arguments of `autotailor relay`."""
    parser = ServiceParser(
        prog=prog,
        description="Where clients meet one agent that cannot be dialled: it pulls their requests "
        "(autotailor agent --pull URL). Both show the relay's token.",
        epilog=RELAY_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_network(parser, port=8764, risk=RISK)
    parser.add_argument("--max-model-mib", type=positive, default=512, help="size of an upload (default 512)")
    return parser


def main(argv: Sequence[str] | None = None, prog: str = "autotailor agent") -> int:
    """Serve until stopped. Returns 0, or 2 after one line on stderr."""
    return _run(agent_parser(prog), argv, _serve_agent)


def relay(argv: Sequence[str] | None = None, prog: str = "autotailor relay") -> int:
    """Serve as the relay of a pulling agent until stopped. Returns 0, or 2 after one line on stderr."""

    def serve(arguments: argparse.Namespace) -> None:
        from profiling_agents.serving.relay import serve_relay

        serve_relay(endpoint(arguments, TOKEN_VARIABLE), arguments.max_model_mib)

    return _run(relay_parser(prog), argv, serve)


def _run(parser: argparse.ArgumentParser, argv: Sequence[str] | None, serve: Callable[..., None]) -> int:
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as stop:
        return int(stop.code or 0)
    try:
        serve(arguments)
    except AgentError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 0
    except Exception as error:
        if (line := full_disk(error)) is None:
            raise
        print(f"{parser.prog}: {line}", file=sys.stderr)
        return 2
    return 0


def _serve_agent(arguments: argparse.Namespace) -> None:
    from profiling_agents.serving.capabilities import ServerOptions
    from profiling_agents.serving.server import serve

    same = {one.name for one in fields(ServerOptions)} & vars(arguments).keys()
    serve(
        ServerOptions(
            **{name: getattr(arguments, name) for name in same},
            network=endpoint(arguments, TOKEN_VARIABLE),
            limits=ModelLimits(
                memory_mib=arguments.memory_limit_mib, cpu_s=arguments.cpu_limit_s, wall_s=arguments.wall_limit_s
            ),
            sandbox=not arguments.without_sandbox,
            segments=arguments.serve_segments,
            allowed_peers=tuple(arguments.allow_peer),
        )
    )
