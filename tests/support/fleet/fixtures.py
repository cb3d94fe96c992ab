"""Bundles of the tests of the run time, and a registry that runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fleet.served_registry import ServedRegistry, served_registry, served_relay
from tests.support.runtime.fixtures import copy, plain_bundle

__all__ = ["copy", "plain_bundle"]


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory, plain_bundle: Path) -> Iterator[ServedRegistry]:
    """Shared: no test may depend on what devices of another one have told."""
    with served_registry(tmp_path_factory.mktemp("registry"), plain_bundle) as found:
        yield found


@pytest.fixture(scope="package")
def relay(service: ServedRegistry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the relay of all devices; `RELAY_TOKEN` is its clients'."""
    with served_relay(tmp_path_factory.mktemp("relay"), f"sqlite:///{service.log.parent}/fleet.db") as url:
        yield url
