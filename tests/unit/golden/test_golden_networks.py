"""Spaces, operators and exported files of every golden network are what they were."""

from pathlib import Path

import pytest

from tailor_ir.rewriting import passes
from tests.support.golden import records
from tests.support.golden.fixtures import Golden
from tests.support.golden.networks import NETWORKS, SMALL, cases, network
from tests.support.ir import spec

EXACT = 0.0
"""Whatever is counted."""


def test_passes_over_these_networks_are_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    monkeypatch.setattr(spec, "check_ir", lambda pass_name, *rest: checked.append(pass_name))
    SMALL["smallest"]()
    assert {one.__name__ for one in passes.PASSES} < set(checked)


def test_each_operator_of_the_smallest_network_is_what_it_was(golden: Golden) -> None:
    found = records.operators_of(network("smallest").unique_operators())
    assert len(found) > 10
    golden("operators_smallest", found, rtol=EXACT)


@pytest.mark.long_cases(
    "attention", "relative_position_bias", "position_embedding", "mobilenetv3_small_050", "test_vit_relpos"
)
@pytest.mark.parametrize("name", cases(NETWORKS))
def test_space_and_operators_of_a_network_are_what_they_were(name: str, golden: Golden) -> None:
    net = network(name)
    configs = records.random_configs(net, records.CONFIGS)
    found = {
        "space": records.space(net),
        "unique_operators": records.unique_operators(net),
        "subnets": records.subnets(net, configs),
    }
    golden(f"network_{name}", found, rtol=EXACT)


@pytest.mark.long_cases("mobilenetv3_small_050", "test_vit_relpos")
@pytest.mark.parametrize("name", cases(NETWORKS))
def test_exported_files_of_a_network_are_built_as_they_were(name: str, golden: Golden, tmp_path: Path) -> None:
    net = network(name)
    configs = records.random_configs(net, records.EXPORTS)
    found = [records.exported(net, config, tmp_path / "subnet.onnx", weights=name in SMALL) for config in configs]
    golden(f"export_{name}", found, rtol=EXACT)
