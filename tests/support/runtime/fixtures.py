"""A small bundle that several modules serve from."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import torch

import tailor_ir
from tests.support.ir.networks import perturb, small_net
from tests.support.runtime.bundled import write_plain_bundle
from tests.support.runtime.drifting import write_adaptable_bundle
from tests.support.runtime.service_process import Served, by_socket, served

SPACE: dict[str, Any] = {"*.width_mult": [0.5, 1], "exits": ["stage.1.block.*"]}


@pytest.fixture(scope="session")
def plain_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The largest and the smallest SubNet of a small network. To be copied by whoever changes it."""
    torch.manual_seed(0)
    net = tailor_ir.compile(perturb(small_net(blocks=3)), torch.randn(1, 3, 16, 16), SPACE)
    folder = tmp_path_factory.mktemp("plain") / "bundle"
    write_plain_bundle(net, [net.max_config, net.min_config], folder)
    return folder


@pytest.fixture(scope="session")
def adaptable_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SubNets that can adapt, of a network that has learnt. To be copied by whoever changes it."""
    folder = tmp_path_factory.mktemp("adaptable") / "bundle"
    write_adaptable_bundle(folder)
    return folder


@pytest.fixture
def copy(plain_bundle: Path, tmp_path: Path) -> Path:
    """A bundle of one's own, to damage."""
    ignored = shutil.ignore_patterns("prepared")
    return Path(shutil.copytree(plain_bundle, tmp_path / "bundle", ignore=ignored))


class LocalServed(NamedTuple):
    """A service with a port and a Unix socket, and the bundle that it serves."""

    service: Served
    path: Path
    bundle: Path

    def client(self) -> httpx.Client:
        """A new client of the socket."""
        return by_socket(self.path)


@contextmanager
def served_locally(bundle: Path, folder: Path) -> Iterator[LocalServed]:
    """A service with a Unix socket. The socket's folder is open to other users, the socket is not. folder: for its log."""
    with tempfile.TemporaryDirectory() as sockets:
        Path(sockets).chmod(0o711)
        path = Path(sockets) / "socket"
        with served(bundle, folder / "log", "--socket", str(path)) as service:
            yield LocalServed(service, path, bundle)
            assert service.process.poll() is None, "it has ended"


@pytest.fixture(scope="module")
def local(plain_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServed]:
    with served_locally(plain_bundle, tmp_path_factory.mktemp("log")) as one:
        yield one
