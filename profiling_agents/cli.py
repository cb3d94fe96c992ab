"""`autotailor agent`: the command line of the device-side service. Exit code 0, or 2 with one clear line."""

import argparse
import os
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, get_args

from profiling_agents.backends import BACKENDS
from profiling_agents.child import TOKEN_VARIABLE
from profiling_agents.limits import Limits
from profiling_agents.machine import memory_mib
from profiling_agents.messages import AgentError, Precision

if TYPE_CHECKING:
    from profiling_agents.network import Network

MIN_TOKEN_LENGTH = 16
MIN_MEMORY_LIMIT_MIB = 256
MAX_MEMORY_LIMIT_MIB = 8192

EPILOG = f"""\
The token comes from --token-file, else from {TOKEN_VARIABLE}; without either, one is generated and written
to a file that only you can read (its name is printed).

examples:
  autotailor agent --backend ncnn
  autotailor agent --backend ncnn --precision bf16
  autotailor agent --backend onnxruntime --threads 4 --cores 4,5,6,7 --port 8766 --token-file token
  autotailor agent --backend ncnn --pull https://desk:8764 --token-file token --ca-file cert.pem
  autotailor agent --backend ncnn --host 192.168.1.20 --tls-cert cert.pem --tls-key key.pem --token-file token
"""


RELAY_EPILOG = """\
example, on a machine that the device and the clients can dial:
  autotailor relay --host 192.168.1.10 --tls-cert cert.pem --tls-key key.pem --token-file token
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line instead of the usage block."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


_positive.__name__ = "positive whole number"


def _memory_mib(text: str) -> int:
    value = int(text)
    if value < MIN_MEMORY_LIMIT_MIB:
        raise ValueError
    return value


_memory_mib.__name__ = f"memory limit (at least {MIN_MEMORY_LIMIT_MIB})"


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65535:
        raise ValueError
    return value


_port.__name__ = "port (0 to 65535)"


def _cores(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


_cores.__name__ = "comma-separated list of core numbers"


def _folder(text: str) -> Path:
    path = Path(text).absolute()
    if not path.is_dir():
        raise ValueError
    return path


_folder.__name__ = "folder"


def _add_network(parser: argparse.ArgumentParser, port: int) -> argparse._ArgumentGroup:
    network = parser.add_argument_group("network")
    network.add_argument("--host", default="127.0.0.1", help="address to bind (default 127.0.0.1)")
    network.add_argument("--port", type=_port, default=port, help=f"port; 0 takes any free one (default {port})")
    network.add_argument("--token-file", type=Path, metavar="F", help="file with the token, readable by you only")
    network.add_argument("--tls-cert", type=Path, metavar="F", help="certificate chain (PEM) for https")
    network.add_argument("--tls-key", type=Path, metavar="F", help="its private key (PEM)")
    network.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a further name by which clients reach this service; may be repeated",
    )
    network.add_argument(
        "--insecure-bind",
        action="store_true",
        help="leave this machine without TLS: the token and the models cross the network "
        "unencrypted, and whoever reads them there can use the agent to run models on its device",
    )
    network.add_argument("--stop-with-stdin", action="store_true", help="stop when standard input closes")
    network.add_argument(
        "--silence-limit-s",
        type=_positive,
        default=0,
        metavar="S",
        help="with --stop-with-stdin: stop, too, when it brings nothing for so long",
    )
    return network


def _network(arguments: argparse.Namespace) -> "Network":
    from profiling_agents.network import Network

    return Network(
        host=arguments.host,
        port=arguments.port,
        token=read_token(arguments.token_file),
        tls_cert=arguments.tls_cert,
        tls_key=arguments.tls_key,
        insecure_bind=arguments.insecure_bind,
        allowed_hosts=tuple(arguments.allowed_host),
        stop_with_stdin=arguments.stop_with_stdin,
        silence_limit_s=arguments.silence_limit_s,
    )


def _parser(prog: str) -> argparse.ArgumentParser:
    memory_limit_mib = max(MIN_MEMORY_LIMIT_MIB, min(MAX_MEMORY_LIMIT_MIB, memory_mib() // 2))
    parser = _Parser(
        prog=prog,
        description="Measure and run models on this device, for clients that show the token.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    runtime = parser.add_argument_group("runtime")
    runtime.add_argument("--backend", required=True, choices=sorted(BACKENDS), help="inference runtime")
    runtime.add_argument("--threads", type=_positive, default=1, help="threads of the runtime (default 1)")
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
        type=_positive,
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
    network = _add_network(parser, port=8765)
    network.add_argument(
        "--pull",
        metavar="URL",
        help="listen to nobody and fetch work from this 'autotailor relay', for devices that cannot be dialled",
    )
    network.add_argument(
        "--ca-file", type=Path, metavar="F", help="certificate (PEM) that the relay is checked against"
    )
    limits = parser.add_argument_group("limits for each model (its process is killed beyond them)")
    limits.add_argument(
        "--memory-limit-mib",
        type=_memory_mib,
        default=memory_limit_mib,
        help=f"address space beyond what the runtime itself takes (default {memory_limit_mib})",
    )
    limits.add_argument("--cpu-limit-s", type=_positive, default=120, help="CPU time (default 120)")
    limits.add_argument("--wall-limit-s", type=_positive, default=60, help="wall-clock time (default 60)")
    limits.add_argument("--max-model-mib", type=_positive, default=512, help="size of an upload (default 512)")
    return parser


def read_token(path: Path | None) -> str | None:
    """The token from a file or the environment, or None; AgentError when it is unsafe to use."""
    if path is None:
        token, where = os.environ.get(TOKEN_VARIABLE), TOKEN_VARIABLE
    else:
        where = f"--token-file '{path}'"
        try:
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                raise AgentError(f"{where}: others can read it; make it private with chmod 600")
            token = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise AgentError(f"{where}: cannot be read ({error})") from error
    if token is None:
        return None
    if len(token) < MIN_TOKEN_LENGTH or not token.isascii() or not token.isprintable() or " " in token:
        raise AgentError(f"{where}: not a token; allowed: at least {MIN_TOKEN_LENGTH} printable characters, no spaces")
    return token


def main(argv: Sequence[str] | None = None, prog: str = "autotailor agent") -> int:
    """Serve until stopped. Returns 0, or 2 after one line on stderr."""
    return _run(_parser(prog), argv, _serve_agent)


def relay(argv: Sequence[str] | None = None, prog: str = "autotailor relay") -> int:
    """Serve as the relay of a pulling agent until stopped. Returns 0, or 2 after one line on stderr."""
    return _run(_relay_parser(prog), argv, _serve_relay)


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
    return 0


def _serve_relay(arguments: argparse.Namespace) -> None:
    from profiling_agents.relay import serve_relay

    serve_relay(_network(arguments), arguments.max_model_mib)


def _relay_parser(prog: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=prog,
        description="Where clients meet one agent that cannot be dialled: it pulls their requests "
        "(autotailor agent --pull URL). Both show the relay's token.",
        epilog=RELAY_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_network(parser, port=8764)
    parser.add_argument("--max-model-mib", type=_positive, default=512, help="size of an upload (default 512)")
    return parser


def _serve_agent(arguments: argparse.Namespace) -> None:
    from profiling_agents.server import ServerOptions, serve

    serve(
        ServerOptions(
            backend=arguments.backend,
            threads=arguments.threads,
            precision=arguments.precision,
            provider=arguments.provider,
            cores=arguments.cores,
            network=_network(arguments),
            pull=arguments.pull,
            ca_file=arguments.ca_file,
            limits=Limits(
                memory_mib=arguments.memory_limit_mib,
                cpu_s=arguments.cpu_limit_s,
                wall_s=arguments.wall_limit_s,
            ),
            max_model_mib=arguments.max_model_mib,
            pin_mhz=arguments.pin_mhz,
            sensors_root=arguments.sensors_root,
        )
    )
