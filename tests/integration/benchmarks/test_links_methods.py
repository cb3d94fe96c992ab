"""What methods make of a network and a link, and the bars over what is measured; without namespaces."""

import argparse
import json
from collections.abc import Sequence
from itertools import groupby, pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tailor_ir
from adaptive_runtime.offload.split import COORDINATOR, LinkUse, PlacedSegments, SplitSubNet
from benchmarks.linked_devices import LinkedDevice, linked
from benchmarks.links import Results, as_the_run_time, bars, links_of, parsed, scaled, shown, summary
from benchmarks.links_coordinator import LEAST_REQUESTS, device_times_ms, measured, uses
from benchmarks.links_methods import (
    ALL_ON_COORDINATOR,
    DEVICE,
    FP32,
    LEAST_PLANS,
    OTHERS,
    OURS,
    SECOND_DEVICE,
    CodedPlan,
    NetworkPlans,
    fine_groups,
    joined,
    operators_of,
    predicted_ms,
    through_coordinator,
)
from benchmarks.shaped_links import COORDINATOR_SPACE, ShapedLink
from profiling_agents.messages import JobMessage, ServedSubNet
from solvers.partition import Dataflow, PartitionProblem, SentValue, plan_of, segments_of
from tests.support.ir.networks import small_net
from tests.support.links.devices import serving, write_chain

LINKS = [ShapedLink(mbps, delay_ms) for mbps in (0.01, 1.0, 1000.0) for delay_ms in (0.1, 5.0)]
ONE_DEVICE = {link: through_coordinator([link]) for link in LINKS}


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
    coordinator_ms = rng.uniform(5.0, 20.0, count)
    plans = NetworkPlans(net, [coordinator_ms.tolist(), (coordinator_ms / 50).tolist()], ONE_DEVICE)
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
    assert OURS in slow[CodedPlan(FP32, (COORDINATOR,) * len(plans.groups))]
    assert OURS in fast[CodedPlan(FP32, (DEVICE,) * len(plans.groups))]


def test_ours_alone_may_send_in_another_coding(net: tailor_ir.SuperNet) -> None:
    count = len(fine_groups(operators_of(net)))
    plans = NetworkPlans(net, [[10.0] * count, [0.1] * count], ONE_DEVICE, "int8")
    for link in LINKS:
        coded = [(plan, names) for plan, names in plans.of(link).items() if plan.coding != FP32]
        assert all(names == [OURS] and DEVICE in plan.devices for plan, names in coded)
        exact = [plan for plan, names in plans.of(link).items() if OURS in names and plan.coding == FP32]
        assert 1 <= len(exact) + len(coded) <= 2, (
            "its best plan in each coding, which may be the coordinator alone in both"
        )
    assert any(plan.coding == "int8" for link in LINKS for plan in plans.of(link))


def test_values_between_two_devices_cross_both_of_their_links() -> None:
    conditions = through_coordinator([ShapedLink(8.0, 2.0), ShapedLink(4.0, 5.0)])
    assert conditions.message_ms.tolist() == [[0.0, 2.0, 5.0], [2.0, 0.0, 7.0], [5.0, 7.0, 0.0]]
    np.testing.assert_allclose(
        conditions.ms_per_byte, [[0.0, 1e-3, 2e-3], [1e-3, 0.0, 3e-3], [2e-3, 3e-3, 0.0]], rtol=1e-12
    )
    assert conditions.slow_down.tolist() == [1.0, 1.0, 1.0]


def test_the_solver_and_the_prediction_agree_on_a_request_over_two_devices() -> None:
    times_ms = [[10.0, 20.0, 30.0], [1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    sizes, links = (4000, 2000, 1000, 400), {DEVICE: ShapedLink(8.0, 2.0), SECOND_DEVICE: ShapedLink(4.0, 5.0)}
    values = tuple(SentValue(writer=at - 1, readers=(at,), bytes=float(size)) for at, size in enumerate(sizes))
    problem = PartitionProblem(dataflow=Dataflow(steps=3, values=values), compute_ms=np.stack(times_ms, axis=1))
    conditions = through_coordinator([*links.values()])
    known = {
        "links": {
            name: {"up_mbps": one.mbps, "down_mbps": one.mbps, "round_trip_ms": 2 * one.delay_ms}
            for name, one in links.items()
        },
        "slow_down": 1.0,
        "handed_ms": 0.0,
        "elsewhere_ms": 0.0,
    }
    names = (COORDINATOR, DEVICE, SECOND_DEVICE)
    for placement in product(range(3), repeat=3):
        devices = tuple(names[one] for one in placement)
        sent = uses(served_chain(sizes), PlacedSegments(devices=devices), 1)
        row = {"known": [known], "sent": {name: use.model_dump() for name, use in sent.items()}}
        by_solver_ms = plan_of(problem, conditions, segments_of(placement)).latency_ms(conditions)
        assert predicted_ms(devices, times_ms, row) == pytest.approx(by_solver_ms), devices


def served_chain(sizes: Sequence[int]) -> ServedSubNet:
    """Segments one behind the other, between which so many elements cross."""
    digest = "0" * 64
    segments = tuple(
        JobMessage(
            key=f"segment {at}",
            format="onnx",
            files=(digest,),
            input_names=(f"v{at}",),
            input_shapes=((1, before),),
            output_names=(f"v{at + 1}",),
            output_shapes=((1, behind),),
        )
        for at, (before, behind) in enumerate(pairwise(sizes))
    )
    return ServedSubNet(segments=segments, input="v0", answer=f"v{len(segments)}", file_bytes={digest: 1})


def test_each_device_of_a_plan_has_its_own_messages_and_bytes() -> None:
    plan = PlacedSegments(devices=(COORDINATOR, DEVICE, SECOND_DEVICE, DEVICE, COORDINATOR))
    assert uses(served_chain((1, 2, 3, 5, 7, 11)), plan, 4) == {
        DEVICE: LinkUse(messages=2, up_bytes=4 * (2 + 5), down_bytes=4 * (3 + 7)),
        SECOND_DEVICE: LinkUse(messages=1, up_bytes=4 * 3, down_bytes=4 * 5),
    }


@pytest.mark.long
def test_coordinator_measures_requests_over_two_devices_and_the_times_of_each(tmp_path: Path) -> None:
    split = SplitSubNet.open(write_chain(tmp_path))
    count = len(split.subnet.segments)
    both, one = (COORDINATOR, DEVICE, *[SECOND_DEVICE] * (count - 2)), (SECOND_DEVICE,) * count
    options = argparse.Namespace(coordinator_ms=None, requests=LEAST_REQUESTS, limit_s=0.1)
    with serving() as first, serving("openvino") as second:
        urls = {DEVICE: first.url, SECOND_DEVICE: second.url}
        rows = measured(split, urls, [(FP32, both), (FP32, one)], options)
        times_ms = device_times_ms(split, SECOND_DEVICE, second.url, 0.1)
    assert [sorted(row["sent"]) for row in rows] == [[DEVICE, SECOND_DEVICE], [SECOND_DEVICE]]
    for row in rows:
        assert len(row["latencies_ms"]) == LEAST_REQUESTS
        assert all({*known["links"]} == {*urls} and known["elsewhere_ms"] > 0 for known in row["known"])
    assert len(times_ms) == count
    assert min(times_ms) > 0


def test_with_two_devices_methods_take_the_better_one_and_a_plan_has_both(net: tailor_ir.SuperNet) -> None:
    count = len(fine_groups(operators_of(net)))
    near, far = ShapedLink(1000.0, 0.1), ShapedLink(0.01, 50.0)
    slow = ShapedLink(1.0, 1.0)
    times_ms = [[10.0] * count, [0.2] * count, [0.1] * count]
    conditions = {
        near: through_coordinator([near, far]),
        far: through_coordinator([far, near]),
        slow: through_coordinator([slow, slow]),
    }
    plans = NetworkPlans(net, times_ms, conditions)
    segments = len(plans.groups)
    assert {OURS, "all remote", "Neurosurgeon", "DADS"} <= {*plans.of(near)[CodedPlan(FP32, (DEVICE,) * segments)]}
    assert {OURS, "all remote", "DADS"} <= {*plans.of(far)[CodedPlan(FP32, (SECOND_DEVICE,) * segments)]}
    assert "all remote" in plans.of(slow)[CodedPlan(FP32, (SECOND_DEVICE,) * segments)], "links are equal"
    for link in conditions:
        placed = plans.of(link)
        assert sorted(name for names in placed.values() for name in names) == sorted((OURS, *OTHERS))
        assert any({DEVICE, SECOND_DEVICE} <= {*plan.devices} for plan in placed)


def test_ours_uses_both_devices_where_each_is_better_at_a_part(net: tailor_ir.SuperNet) -> None:
    count = len(fine_groups(operators_of(net)))
    link, at = ShapedLink(1000.0, 0.1), np.arange(count)
    early, late = np.where(at < count // 2, 1.0, 50.0), np.where(at < count // 2, 50.0, 1.0)
    placed = NetworkPlans(
        net, [[100.0] * count, early.tolist(), late.tolist()], {link: through_coordinator([link] * 2)}
    ).of(link)
    (own,) = [plan for plan, names in placed.items() if OURS in names]
    assert [one for one, _ in groupby(own.devices)] == [DEVICE, SECOND_DEVICE]
    assert placed[own] == [OURS], "the others have one cut between the coordinator and one device"


def test_a_second_device_has_a_link_of_its_own_and_settings_in_the_file(tmp_path: Path) -> None:
    link = ShapedLink(10.0, 2.0)
    one, two = parsed([]), parsed(["--second-device-backend", "openvino"])
    assert links_of(link, one) == {DEVICE: link}
    assert links_of(link, two) == {DEVICE: link, SECOND_DEVICE: ShapedLink(10.0, 5.0)}
    slower = parsed(["--second-device-backend", "openvino", "--second-mbps", "3", "--second-delay-ms", "7"])
    assert links_of(link, slower)[SECOND_DEVICE] == ShapedLink(3.0, 7.0)
    file = tmp_path / "links.json"
    Results(file, one).save()
    assert not any(name.startswith("second") for name in json.loads(file.read_text())["settings"])
    with pytest.raises(SystemExit, match="is of other options"):
        Results(file, two)
    settings = Results(tmp_path / "two.json", slower).content["settings"]
    assert (settings["second_device_backend"], settings["second_mbps"]) == ("openvino", 3.0)


def test_devices_have_namespaces_and_networks_of_their_own() -> None:
    devices = linked((DEVICE, SECOND_DEVICE))
    assert devices[SECOND_DEVICE] == LinkedDevice(SECOND_DEVICE, 1)
    for get in (lambda one: one.space, lambda one: one.network, lambda one: one.url, lambda one: one.undelayed_url):
        assert len({get(one) for one in devices.values()}) == 2
    assert devices[DEVICE].ends == ((COORDINATOR_SPACE, "atl0h"), ("atl-device", "atl0d"))
    ends = [end for device in devices.values() for _, end in device.ends]
    assert len(set(ends)) == 4


def test_times_of_small_segments_are_scaled_for_each_device_by_itself() -> None:
    assert scaled([[1.0, 3.0], [2.0, 2.0], [1.0, 1.0]], [[8.0], [2.0], [3.0]]) == [[2.0, 6.0], [1.0, 1.0], [1.5, 1.5]]


def test_a_prediction_is_times_the_link_and_what_runs_take_beyond() -> None:
    link = {"up_mbps": 8.0, "down_mbps": 80.0, "round_trip_ms": 3.0}
    known = {"links": {DEVICE: link}, "slow_down": 1.0, "handed_ms": 0.0, "elsewhere_ms": 0.0}
    use = {"messages": 2, "up_bytes": 10_000, "down_bytes": 1000}

    def predicted(devices: tuple[str, ...], *changes: dict[str, float]) -> float:
        times_ms = [10.0, 20.0, 30.0, 40.0][: len(devices)], [1.0, 2.0, 3.0, 4.0][: len(devices)]
        sent = {DEVICE: use} if DEVICE in devices else {}
        return predicted_ms(devices, times_ms, {"sent": sent, "known": [known | one for one in changes or ({},)]})

    four = (COORDINATOR, DEVICE, COORDINATOR, DEVICE)
    plain_ms = 10 + 2 + 30 + 4 + 2 * 3.0 + 10.0 + 0.1
    assert predicted(four) == pytest.approx(plain_ms)
    assert predicted(four, {"slow_down": 1.5}) == pytest.approx(plain_ms + 0.5 * (10 + 30))
    assert predicted(four, {"handed_ms": 2.0}) == pytest.approx(plain_ms + 2 * 2.0), "two runs on the coordinator"
    assert predicted(four, {"elsewhere_ms": 5.0}) == pytest.approx(plain_ms + 2 * 5.0), "two messages"
    assert predicted((COORDINATOR,) * 2, {"elsewhere_ms": 5.0, "handed_ms": 1.0}) == 31.0
    slower = [{"slow_down": slow_down} for slow_down in (1.0, 1.1, 9.0)]
    assert predicted((COORDINATOR,) * 2, *slower) == pytest.approx(33.0), "the median over requests"


def row_of(ours_ms: float, others_ms: float, predicted_ms: float) -> dict[str, Any]:
    ours = {"methods": [OURS], "devices": [COORDINATOR], "latency_ms": ours_ms, "predicted_ms": predicted_ms}
    others = {"methods": list(OTHERS), "devices": [DEVICE], "latency_ms": others_ms, "predicted_ms": others_ms}
    return {"network": "n", "mbps": 1.0, "delay_ms": 2.0, "plans": [ours, others]}


@pytest.mark.parametrize(("predicted_ms", "on_coordinator"), [(94.0, False), (96.0, True), (120.0, True)])
def test_ours_goes_coordinator_where_its_plan_is_not_predicted_to_be_faster_by_the_margin(
    predicted_ms: float, on_coordinator: bool
) -> None:
    coordinator = {"methods": [ALL_ON_COORDINATOR], "predicted_ms": 100.0}
    plans = [{"methods": [OURS, "DADS"], "predicted_ms": predicted_ms}, coordinator]
    own, left = as_the_run_time(plans)
    assert (own["methods"], left["methods"]) == (
        (["DADS"], [OURS, ALL_ON_COORDINATOR]) if on_coordinator else ([OURS, "DADS"], [ALL_ON_COORDINATOR])
    )
    coded = [{"methods": [OURS], "predicted_ms": 80.0}, {"methods": [OURS, "DADS"], "predicted_ms": 70.0}]
    told = as_the_run_time([*coded, {"methods": [ALL_ON_COORDINATOR], "predicted_ms": 100.0}])
    assert [one["methods"] for one in told] == [[], [OURS, "DADS"], [ALL_ON_COORDINATOR]], (
        "the faster one of two codings"
    )
    alone = [{"methods": [OURS, ALL_ON_COORDINATOR], "predicted_ms": 100.0}]
    assert as_the_run_time(alone)[0]["methods"] == [OURS, ALL_ON_COORDINATOR]


def test_bars_are_told_with_what_they_are_missed_by() -> None:
    lines = bars([row_of(7.0, 10.0, 7.5), row_of(7.0, 10.0, 7.0)])
    assert all(kept for _, kept in lines)
    assert "4 of 4" in lines[0][0]
    assert lines[2][0] == "less than all on the coordinator, mean over links: 30.0%, bar 20%"
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


def test_a_table_tells_how_many_segments_of_ours_each_device_has(capsys: pytest.CaptureFixture[str]) -> None:
    row = row_of(7.0, 10.0, 7.5)
    row["plans"][0]["devices"] = [COORDINATOR, DEVICE, SECOND_DEVICE, SECOND_DEVICE]
    shown([row], markdown=True)
    assert "| 1 coordinator, 1 device, 2 second |" in capsys.readouterr().out.splitlines()[-1]


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
