"""What methods make of a network and a link, and the bars over what is measured; without namespaces."""

import argparse
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tailor_ir
from adaptive_runtime.split import HOME
from benchmarks.links import Results, as_the_run_time, bars, parsed, summary
from benchmarks.links_home import DEVICE
from benchmarks.links_methods import (
    ALL_AT_HOME,
    FP32,
    LEAST_PLANS,
    OTHERS,
    OURS,
    CodedPlan,
    NetworkPlans,
    fine_groups,
    joined,
    operators_of,
    predicted_ms,
)
from benchmarks.shaped_links import ShapedLink
from tests.ir.networks import small_net

LINKS = [ShapedLink(mbps, delay_ms) for mbps in (0.01, 1.0, 1000.0) for delay_ms in (0.1, 5.0)]


@pytest.fixture(scope="module")
def net() -> tailor_ir.SuperNet:
    torch.manual_seed(0)
    return tailor_ir.compile(small_net(channels=16, blocks=3), torch.randn(1, 3, 16, 16))


def test_segments_keep_all_operators_and_what_crosses_them(net: tailor_ir.SuperNet) -> None:
    flow = operators_of(net)
    groups = fine_groups(flow)
    assert [step for group in groups for step in group] == list(range(flow.steps))
    assert len(groups) > 3
    starts = [group[0] for group in groups] + [flow.steps]
    assert joined(flow, groups).crossing_bytes.tolist() == flow.crossing_bytes[starts].tolist()
    assert set(joined(flow, groups).crossing[:-1]) == {1}


def test_each_link_has_every_method_and_ours_is_predicted_to_be_the_fastest(net: tailor_ir.SuperNet) -> None:
    count = len(fine_groups(operators_of(net)))
    rng = np.random.default_rng(0)
    home_ms = rng.uniform(5.0, 20.0, count)
    plans = NetworkPlans(net, home_ms.tolist(), (home_ms / 50).tolist(), LINKS)
    assert [step for group in plans.groups for step in group] == list(range(operators_of(net).steps))
    used = set()
    for link in LINKS:
        placed = plans.of(link)
        assert len(placed) >= LEAST_PLANS
        assert sorted(name for names in placed.values() for name in names) == sorted((OURS, *OTHERS))
        assert all(plan.coding == FP32 and len(plan.devices) == len(plans.groups) for plan in placed)
        used |= {cut for plan in placed for cut, (a, b) in enumerate(pairwise(plan.devices), 1) if a != b}
    assert used == set(range(1, len(plans.groups))), "no segment is cut that no plan needs"
    slow, fast = plans.of(LINKS[0]), plans.of(LINKS[-2])
    assert OURS in slow[CodedPlan(FP32, (HOME,) * len(plans.groups))]
    assert OURS in fast[CodedPlan(FP32, (DEVICE,) * len(plans.groups))]


def test_ours_alone_may_send_in_another_coding(net: tailor_ir.SuperNet) -> None:
    count = len(fine_groups(operators_of(net)))
    plans = NetworkPlans(net, [10.0] * count, [0.1] * count, LINKS, "int8")
    for link in LINKS:
        coded = [(plan, names) for plan, names in plans.of(link).items() if plan.coding != FP32]
        assert all(names == [OURS] and DEVICE in plan.devices for plan, names in coded)
        exact = [plan for plan, names in plans.of(link).items() if OURS in names and plan.coding == FP32]
        assert 1 <= len(exact) + len(coded) <= 2, "its best plan in each coding, which may be home alone in both"
    assert any(plan.coding == "int8" for link in LINKS for plan in plans.of(link))


def test_a_prediction_is_times_the_link_and_what_runs_take_beyond() -> None:
    link = {"up_mbps": 8.0, "down_mbps": 80.0, "round_trip_ms": 3.0}
    known = {"link": link, "slow_down": 1.0, "handed_ms": 0.0, "elsewhere_ms": 0.0}
    sent = {"messages": 2, "up_bytes": 10_000, "down_bytes": 1000}

    def predicted(devices: tuple[str, ...], *changes: dict[str, float], messages: int = 2) -> float:
        home_ms, device_ms = [10.0, 20.0, 30.0, 40.0][: len(devices)], [1.0, 2.0, 3.0, 4.0][: len(devices)]
        row = sent | {"messages": messages, "known": [known | change for change in changes or ({},)]}
        return predicted_ms(devices, home_ms, device_ms, row)

    four = (HOME, DEVICE, HOME, DEVICE)
    plain_ms = 10 + 2 + 30 + 4 + 2 * 3.0 + 10.0 + 0.1
    assert predicted(four) == pytest.approx(plain_ms)
    assert predicted(four, {"slow_down": 1.5}) == pytest.approx(plain_ms + 0.5 * (10 + 30))
    assert predicted(four, {"handed_ms": 2.0}) == pytest.approx(plain_ms + 2 * 2.0), "two runs at home"
    assert predicted(four, {"elsewhere_ms": 5.0}) == pytest.approx(plain_ms + 2 * 5.0), "two messages"
    assert predicted((HOME,) * 2, {"elsewhere_ms": 5.0, "handed_ms": 1.0}, messages=0) == 31.0
    slower = [{"slow_down": slow_down} for slow_down in (1.0, 1.1, 9.0)]
    assert predicted((HOME,) * 2, *slower, messages=0) == pytest.approx(33.0), "the median over requests"


def row_of(ours_ms: float, others_ms: float, predicted_ms: float) -> dict[str, Any]:
    ours = {"methods": [OURS], "devices": [HOME], "latency_ms": ours_ms, "predicted_ms": predicted_ms}
    others = {"methods": list(OTHERS), "devices": [DEVICE], "latency_ms": others_ms, "predicted_ms": others_ms}
    return {"network": "n", "mbps": 1.0, "delay_ms": 2.0, "plans": [ours, others]}


@pytest.mark.parametrize(("predicted_ms", "at_home"), [(94.0, False), (96.0, True), (120.0, True)])
def test_ours_goes_home_where_its_plan_is_not_predicted_to_be_faster_by_the_margin(
    predicted_ms: float, at_home: bool
) -> None:
    home = {"methods": [ALL_AT_HOME], "predicted_ms": 100.0}
    plans = [{"methods": [OURS, "DADS"], "predicted_ms": predicted_ms}, home]
    own, left = as_the_run_time(plans)
    assert (own["methods"], left["methods"]) == (
        (["DADS"], [OURS, ALL_AT_HOME]) if at_home else ([OURS, "DADS"], [ALL_AT_HOME])
    )
    coded = [{"methods": [OURS], "predicted_ms": 80.0}, {"methods": [OURS, "DADS"], "predicted_ms": 70.0}]
    told = as_the_run_time([*coded, {"methods": [ALL_AT_HOME], "predicted_ms": 100.0}])
    assert [one["methods"] for one in told] == [[], [OURS, "DADS"], [ALL_AT_HOME]], "the faster one of two codings"
    alone = [{"methods": [OURS, ALL_AT_HOME], "predicted_ms": 100.0}]
    assert as_the_run_time(alone)[0]["methods"] == [OURS, ALL_AT_HOME]


def test_bars_are_told_with_what_they_are_missed_by() -> None:
    lines = bars([row_of(7.0, 10.0, 7.5), row_of(7.0, 10.0, 7.0)])
    assert all(kept for _, kept in lines)
    assert "4 of 4" in lines[0][0]
    assert lines[2][0] == "less than all at home, mean over links: 30.0%, bar 20%"
    lines = bars([row_of(10.4, 10.0, 12.0)])
    assert not any(kept for _, kept in lines)
    assert "1 of 2 (50.0%)" in lines[0][0]
    assert "0 of 1 links, bar all; worst 1.040" in lines[1][0]


def test_a_summary_has_a_line_for_each_network_and_bandwidth(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row_of(7.0, 10.0, 7.5), row_of(9.0, 10.0, 7.0), row_of(11.0, 10.0, 11.0) | {"mbps": 5.0}]
    summary(rows, markdown=True)
    lines = capsys.readouterr().out.strip().splitlines()
    assert [line.split(" | ")[1:7] for line in lines[2:]] == [
        ["1", "2", "0", "3 of 4", "0.90", "20.0%"],
        ["5", "1", "0", "2 of 2", "1.10", "-10.0%"],
    ]


def test_a_file_of_results_goes_on_and_is_of_its_options(tmp_path: Path) -> None:
    def options(*words: str) -> argparse.Namespace:
        return parsed([*words, "--json", str(tmp_path / "links.json")])

    results = Results(options().json, options())
    results.rows.append(row_of(1.0, 1.0, 1.0))
    results.save()
    assert json.loads((tmp_path / "links.json").read_text())["rows"]
    again = Results(options().json, options("--markdown"))
    assert again.has("n", ShapedLink(1.0, 2.0))
    assert not again.has("n", ShapedLink(5.0, 2.0))
    with pytest.raises(SystemExit, match="is of other options; give another --json FILE"):
        Results(options().json, options("--quick"))
