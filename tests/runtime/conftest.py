"""A small bundle that several modules serve from."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import tailor_ir
from tests.ir.networks import perturb, small_net
from tests.runtime.bundled import write_plain_bundle
from tests.runtime.local_client import LocalClient
from tests.runtime.service_process import Served, served

LOCAL_QUEUE = 8
IMPATIENT = """
import sys
from adaptive_runtime.service.local import connection
connection.BODY_S = 2.0
connection.TAKEN_S = 1.0
from adaptive_runtime.cli import main
sys.exit(main(sys.argv[1:]))
"""
SPACE: dict[str, Any] = {"*.width_mult": [0.5, 1], "exits": ["stage.1.block.*"]}


@pytest.fixture(scope="session")
def plain_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The largest and the smallest SubNet of a small network. To be copied by whoever changes it."""
    torch.manual_seed(0)
    net = tailor_ir.compile(perturb(small_net(blocks=3)), torch.randn(1, 3, 16, 16), SPACE)
    folder = tmp_path_factory.mktemp("plain") / "bundle"
    write_plain_bundle(net, [net.max_config, net.min_config], folder)
    return folder


class LocalServed(NamedTuple):
    """A service with a socket, and the bundle that it serves."""

    http: Served
    path: Path
    bundle: Path

    def client(self) -> LocalClient:
        """A new connection."""
        return LocalClient(self.path)


@pytest.fixture(scope="module")
def local(plain_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServed]:
    """One that loses its patience sooner. Its folder is open to other users, its socket is not."""
    log = tmp_path_factory.mktemp("log") / "log"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        path = Path(folder) / "socket"
        options = ("--socket", str(path), "--queue", str(LOCAL_QUEUE), "--deadline-ms", "60000")
        with served(plain_bundle, log, *options, command=(sys.executable, "-c", IMPATIENT)) as service:
            yield LocalServed(service, path, plain_bundle)
            assert service.process.poll() is None, "it has ended"
