"""What tests of all rooms share."""

import gc
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.storage.server import S3

settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")
"""How long an example takes to draw and to run says what else the machine does, and fails no test."""

os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "300")
"""Where tests import Prefect before a command has started a server, Prefect starts one itself, and waits 20 s otherwise."""

COMPILING_ROOMS = {"flows", "tasks", "tailor_ir"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Golden files are changed by this option alone."""
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/files anew instead of comparing")


def pytest_collection_finish() -> None:
    """What is imported stays until the end: the garbage collector need not look at it again after each test."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


@pytest.fixture(scope="session", autouse=True)
def checked_passes() -> Iterator[None]:
    """Every pass of every network that tests compile is checked; where no test can compile, nothing is imported."""
    if COMPILING_ROOMS.isdisjoint(sys.modules):
        yield
        return
    from tests.ir import spec

    with spec.installed():
        yield


@pytest.fixture(scope="session", autouse=True)
def own_tracking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """MLflow's database in a temporary folder, apart from that of the working folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db")
        yield


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator["S3"]:
    """A server of the S3 protocol in a process of its own, with an empty bucket."""
    from tests.storage.server import served

    with served(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def one_thread() -> Iterator[None]:
    """torch computes on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
