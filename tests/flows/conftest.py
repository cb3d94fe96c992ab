"""One cache folder (Prefect's home, locks) for all tests of this folder, apart from the user's own."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """XDG_CACHE_HOME in a temporary folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("PREFECT_API_URL", raising=False)
        patch.delenv("PREFECT_HOME", raising=False)
        yield
