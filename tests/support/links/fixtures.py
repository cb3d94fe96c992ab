"""A SubNet in segments, and one device that serves them, which tests share as long as they do not harm it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from adaptive_runtime.offload.split import SplitSubNet
from tests.support.agents.agent_processes import TOKEN
from tests.support.links.devices import Reference, ServingDevice, serving, write_chain


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chain(tmp_path_factory.mktemp("split") / "chain")


@pytest.fixture(scope="session")
def split(chain: Path) -> SplitSubNet:
    return SplitSubNet.open(chain)


@pytest.fixture(scope="session")
def reference(split: SplitSubNet) -> Reference:
    return Reference(split)


@pytest.fixture(scope="session")
def device() -> Iterator[ServingDevice]:
    with serving() as one:
        yield one


@pytest.fixture
def token(tmp_path: Path) -> Path:
    """The file of the devices' token, which nobody else may read."""
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    return file
