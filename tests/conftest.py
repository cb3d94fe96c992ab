"""Settings and fixtures of all tests: how many examples are tried, which cases wait for the night, how long a test may take."""

import gc
import os
import resource
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.support import FEW_EXAMPLES, scheduling

if TYPE_CHECKING:
    from tests.support.storage.server import S3

TESTS = Path(__file__).parent
NIGHTLY = TESTS / "nightly"
MOST_CPU_S = 20.0
"""Processor time [s] that one test may take in `make test`, its own and that of processes that it waited for."""
FURTHER_RUNTIMES = {"executorch", "openvino", "torch"}
"""Runtimes whose cases of integration tests run at night: the same tests take onnxruntime and ncnn in `make test`."""
FURTHER_RUNS = {"adapted", "adapted_night", "leveled", "text_run"}
"""Fixtures that run the pipeline once more: `make test` has one run, and the nights have these."""
# A busy machine slows the drawing and the running of examples: no deadline.
settings.register_profile("nightly", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fast", parent=settings.get_profile("nightly"), max_examples=FEW_EXAMPLES)

os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "300")
"""Where tests import Prefect before a command has started a server, Prefect starts one itself, and waits 20 s otherwise."""

os.environ.pop("COLUMNS", None)
"""Tables are as wide as they need, whatever terminal the tests were started from."""

pytest_xdist_make_scheduler = scheduling.pytest_xdist_make_scheduler
"""Tests that need one finished run share a worker."""

COMPILING_ROOMS = {"flows", "tasks", "tailor_ir"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Golden files are changed by this option alone."""
    parser.addoption(
        "--update-golden", action="store_true", help="write tests/support/golden/files anew instead of comparing"
    )
    parser.addoption("--many-examples", action="store_true", help="try each property on as many examples as it names")


def pytest_configure(config: pytest.Config) -> None:
    """Properties are tried on few examples, and on many where tests of the nightly tier are asked for (`--many-examples`)."""
    settings.load_profile("nightly" if config.getoption("--many-examples") else "fast")
    torch.set_num_threads(1)  # as in make test: threads of several workers wait for each other


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Cases that are left to the nights are long ones. Tests of finished runs come first: they take longest."""
    seen = Counter[str]()
    for item in items:
        test = item.nodeid.partition("[")[0]
        if _waits_for_night(item, seen[test]):
            item.add_marker("long")
        seen[test] += 1
    items.sort(key=lambda item: scheduling.SHARED_RUNS.isdisjoint(getattr(item, "fixturenames", ())))


def _waits_for_night(item: pytest.Item, position: int) -> bool:
    """Whether `make test` leaves out a test with a further run or runtime, or a case of a test by its id or position."""
    if not FURTHER_RUNS.isdisjoint(getattr(item, "fixturenames", ())):
        return True
    case = getattr(getattr(item, "callspec", None), "id", "")
    if item.path.is_relative_to(TESTS / "integration") and not FURTHER_RUNTIMES.isdisjoint(case.split("-")):
        return True
    few, left = item.get_closest_marker("few"), item.get_closest_marker("long_cases")
    if few is not None:
        return case not in few.args and not any(isinstance(count, int) and position < count for count in few.args)
    return left is not None and case in left.args


def _cpu_s() -> float:
    own, waited = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + waited.ru_utime + waited.ru_stime


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test of `make test` that takes too long fails."""
    before = _cpu_s()
    yield
    took = _cpu_s() - before
    limited = not (item.path.is_relative_to(NIGHTLY) or item.config.getoption("--many-examples"))
    if took > MOST_CPU_S and limited:
        pytest.fail(
            f"took {took:.0f} s of processor time; allowed: {MOST_CPU_S:.0f}; move it to tests/nightly or make it cheaper"
        )


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
    from tests.support.ir import spec

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
    from tests.support.storage.server import served

    with served(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def one_thread() -> Iterator[None]:
    """torch computes on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
