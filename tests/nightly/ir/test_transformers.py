"""Twenty architectures of Hugging Face's transformers become SuperNets as they are."""

from pathlib import Path

import pytest

from tests.integration.ir.small_transformers import OTHERS, WITH_TEXT, check

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("name", [*WITH_TEXT, *OTHERS])
def test_a_network_compiles_and_its_subnets_agree(name: str, tmp_path: Path) -> None:
    check(transformers, name, tmp_path)
