"""What tests of all rooms share."""

from collections.abc import Iterator

import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    """Golden files are changed by this option alone."""
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/files anew instead of comparing")


@pytest.fixture(scope="session", autouse=True)
def own_tracking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """MLflow's database in a temporary folder, apart from that of the working folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db")
        yield


@pytest.fixture
def one_thread() -> Iterator[None]:
    """torch computes on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
