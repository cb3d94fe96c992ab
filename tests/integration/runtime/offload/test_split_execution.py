"""A SubNet over real devices on loopback answers as its files do, and goes to the coordinator when devices fail."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.offload.links import DeviceAddress
from adaptive_runtime.offload.split import COORDINATOR, PlacedSegments, SplitNetwork, SplitOptions, SplitSubNet
from adaptive_runtime.offload.split.segments import CoordinatorSegments, Loaded
from benchmarks.day_played import SlowerCoordinator
from profiling_agents.messages import ActivationCoding
from tasks.placement.bundled import CodedSubNet
from tests.support.agents.agent_processes import soon
from tests.support.links.devices import Array, Reference, ServingDevice, are_in, inputs, same

DEADLINE_MS = 60_000.0


def plan(*devices: str) -> PlacedSegments:
    return PlacedSegments(devices=devices)


PLANS = [
    (COORDINATOR, "a", "a", "a"),
    ("a", "a", "a", "a"),
    (COORDINATOR, "a", COORDINATOR, "a"),
    (COORDINATOR, COORDINATOR, "a", COORDINATOR),
]


@pytest.mark.parametrize("devices", PLANS, ids="-".join)
def test_a_plan_answers_as_the_files_do(
    devices: tuple[str, ...], split: SplitSubNet, reference: Reference, device: ServingDevice
) -> None:
    options = SplitOptions(check_share=1.0)
    with SplitNetwork(split, {"a": device.address}, [plan(*devices)], options) as network:
        assert are_in(network, "a"), network.states
        for x in inputs(split, 5):
            found = network.infer(x, DEADLINE_MS)
            assert same(found.answer, reference(x))
            assert found.on_coordinator is None
            assert not found.late
            assert [(leg.device, leg.first, leg.last) for leg in found.segments] == list(plan(*devices).segments)
        assert network.counts.wrong == 0
        assert network.counts.checked + network.counts.unchecked > 0


@pytest.mark.parametrize("devices", PLANS, ids="-".join)
def test_coded_values_are_judged_as_another_device_gets_them(
    devices: tuple[str, ...], split: SplitSubNet, reference: Reference, device: ServingDevice
) -> None:
    coded = CodedSubNet(split, [plan(*devices)], "int8")
    with SplitNetwork(split, {"a": device.address}, [plan(*devices)], SplitOptions(coding="int8")) as network:
        assert are_in(network, "a"), network.states
        for x in inputs(split, 3):
            found = network.infer(x, DEADLINE_MS)
            assert found.on_coordinator is None
            assert same(coded.infer(x), found.answer)
            assert not same(coded.infer(x), reference(x))


class CountedCoordinator(CoordinatorSegments):
    """Counts the runs of segments."""

    runs = 0

    def loaded(self, split: SplitSubNet) -> list[Loaded]:
        return [partial(self._counted, one) for one in super().loaded(split)]

    def _counted(self, segment: Loaded, inputs: Sequence[Array]) -> Sequence[Array]:
        self.runs += 1
        return segment(inputs)


class SlowerCountedCoordinator(SlowerCoordinator, CountedCoordinator):
    """What it counts is run several times."""


def test_coordinator_may_be_another_one_and_slower_by_runs(
    split: SplitSubNet, reference: Reference, device: ServingDevice
) -> None:
    coordinator = SlowerCountedCoordinator(split, 3)
    plans, options = [plan(COORDINATOR, COORDINATOR, "a", "a")], SplitOptions(check_share=0.0)
    with SplitNetwork(split, {"a": device.address}, plans, options, coordinator) as network:
        assert are_in(network, "a")
        before = coordinator.runs
        (x,) = inputs(split, 1)
        found = network.infer(x, DEADLINE_MS)
    assert same(found.answer, reference(x))
    assert found.on_coordinator is None
    assert coordinator.runs - before == 2 * 3


@pytest.mark.parametrize(("coding", "tolerance"), [("fp16", 5e-3), ("int8", 0.1)])
def test_tensors_cross_in_fewer_bits(
    coding: ActivationCoding, tolerance: float, split: SplitSubNet, reference: Reference, device: ServingDevice
) -> None:
    options = SplitOptions(coding=coding, check_share=1.0)
    with SplitNetwork(split, {"a": device.address}, [plan(COORDINATOR, "a", "a", "a")], options) as network:
        assert are_in(network, "a")
        for x in inputs(split, 5):
            found = network.infer(x, DEADLINE_MS)
            assert found.on_coordinator is None
            assert same(found.answer, reference(x), tolerance)
        assert network.states["a"][0] == "in", "what the coding does counts as no fault"


def test_requests_in_flight_are_answered_each_by_its_own_input(
    split: SplitSubNet, reference: Reference, device: ServingDevice
) -> None:
    xs = inputs(split, 40)
    with SplitNetwork(split, {"a": device.address}, [plan(COORDINATOR, "a", "a", COORDINATOR)]) as network:
        assert are_in(network, "a")
        futures = [network.submit(x, DEADLINE_MS) for x in xs]
        for x, future in zip(xs, futures, strict=True):
            assert same(future.result(120).answer, reference(x))
        assert network.counts.answered == len(xs)
        assert network.counts.by_device["a"] >= 8


def test_without_the_device_coordinator_answers(split: SplitSubNet, reference: Reference) -> None:
    nobody = DeviceAddress(url="tcp://127.0.0.1:9", token="x" * 16)
    with SplitNetwork(split, {"a": nobody}, [plan(COORDINATOR, "a", "a", "a")]) as network:
        (x,) = inputs(split, 1)
        found = network.infer(x, DEADLINE_MS)
        assert same(found.answer, reference(x))
        assert found.devices == (COORDINATOR,)
        assert not network.wait_for("a", timeout_s=0.2)
        assert soon(lambda: "cannot be reached" in network.states["a"][1]), network.states
        assert network.states["a"][0] == "out"


def test_inputs_and_deadlines_that_cannot_be_are_refused(split: SplitSubNet) -> None:
    with SplitNetwork(split, {}, [plan(*[COORDINATOR] * 4)]) as network:
        (x,) = inputs(split, 1)
        cases: tuple[tuple[Any, str], ...] = (
            (x.astype(np.float64), r"input: float64 .*; allowed: float32 \(1, 3, 16, 16\)"),
            (x[:, :2], r"input: float32 \(1, 2, 16, 16\); allowed"),
            (np.full_like(x, np.nan), "input: has NaN"),
        )
        for bad, line in cases:
            with pytest.raises(AdaptiveError, match=line):
                network.submit(bad, DEADLINE_MS)
        with pytest.raises(AdaptiveError, match="deadline_ms: 0; allowed: finite, above 0"):
            network.submit(x, 0)
    with pytest.raises(AdaptiveError, match="is closed"):
        network.submit(x, DEADLINE_MS)


def test_the_link_is_measured_while_it_is_used(split: SplitSubNet, device: ServingDevice) -> None:
    with SplitNetwork(split, {"a": device.address}, [plan(COORDINATOR, "a", "a", "a")]) as network:
        assert are_in(network, "a")
        link = network.links["a"]
        assert link.round_trip_ms is not None
        assert link.round_trip_ms > 0
        assert (link.up_mbps or 0) > 0
        assert (link.down_mbps or 0) > 0
        before = network.infer(inputs(split, 1)[0], DEADLINE_MS)
        assert before.segments[1].peer is not None
        assert before.segments[1].peer.total_ms >= before.segments[1].peer.computed_ms
