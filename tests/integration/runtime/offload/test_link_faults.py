"""Devices are killed and frozen, links cut and garbled: each request is answered once, rightly and in time."""

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.offload.links import DeviceAddress, Peer
from adaptive_runtime.offload.split import COORDINATOR, PlacedSegments, SplitNetwork, SplitOptions, SplitSubNet
from tests.support.agents.agent_processes import TOKEN, soon
from tests.support.links.devices import Reference, ServingDevice, are_in, inputs, same, serving
from tests.support.links.relay import LinkRelay, address_of, relayed

PATIENT = SplitOptions(spare_ms=8_000.0)
"""The tests' machine is busy with other work, and stands still at times."""
PLAN = PlacedSegments(devices=(COORDINATOR, "a", "a", "a"))
DEADLINE_MS = 60_000.0
SHORT_MS = 10_000.0
"""Of requests that devices keep: the coordinator begins them 8 s before, that is after 2 s."""
FLIGHTS = 5
BOUNDARY_BYTES = 4 * 16 * 8 * 8


def answered(network: SplitNetwork, reference: Reference, xs: list[Any], deadline_ms: float = DEADLINE_MS) -> int:
    """How many requests the coordinator finished against the plan; all are right and in time."""
    futures = [network.submit(x, deadline_ms) for x in xs]
    found = [future.result(120) for future in futures]
    for x, one in zip(xs, found, strict=True):
        assert same(one.answer, reference(x))
        assert not one.late, one
    return sum(one.on_coordinator is not None for one in found)


def test_coordinator_does_nothing_for_a_request_for_which_nobody_waits(
    split: SplitSubNet, reference: Reference, device: ServingDevice
) -> None:
    with relayed(device.url) as relay:
        address = DeviceAddress(url=address_of(relay), token=TOKEN)
        options = SplitOptions(spare_ms=DEADLINE_MS - 6_000.0)  # nobody waits for the first one by then
        with SplitNetwork(split, {"a": address}, [PLAN], options) as network:
            assert are_in(network, "a"), network.states
            relay.hold()
            left, waited_for = (network.submit(x, DEADLINE_MS) for x in inputs(split, 2))
            network.leave(left)
            with pytest.raises(AdaptiveError, match="nobody waits for the answer"):
                left.result(120)
            assert same(waited_for.result(120).answer, reference(inputs(split, 2)[1]))
            counts = network.counts
            assert (counts.left, counts.on_coordinator, counts.answered, counts.failed) == (1, 1, 1, 0)


LINK_FAULTS: dict[str, Callable[[LinkRelay], None]] = {
    "cut": LinkRelay.cut,
    "cut in a tensor": lambda relay: relay.cut_after("up", BOUNDARY_BYTES // 2),
    "cut in an answer": lambda relay: relay.cut_after("down", 200),
    "garbled tensor": lambda relay: relay.flip_after("up", BOUNDARY_BYTES // 2),
    "garbled header": lambda relay: relay.flip_after("up", 30),
    "garbled prefix": lambda relay: relay.flip_after("up", 6),
    "garbled answer": lambda relay: relay.flip_after("down", 215),
    "held": LinkRelay.hold,
}


@pytest.mark.parametrize("fault", LINK_FAULTS)
def test_a_fault_of_the_link_loses_no_request(
    fault: str, split: SplitSubNet, reference: Reference, device: ServingDevice
) -> None:
    with relayed(device.url) as relay:
        address = DeviceAddress(url=address_of(relay), token=TOKEN)
        with SplitNetwork(split, {"a": address}, [PLAN], PATIENT) as network:
            assert are_in(network, "a"), network.states
            assert answered(network, reference, inputs(split, FLIGHTS)) == 0
            LINK_FAULTS[fault](relay)
            came_coordinator = answered(network, reference, inputs(split, FLIGHTS, 1), SHORT_MS)
            assert came_coordinator > 0 or fault != "held"  # another one coordinator may notice before it plans
            assert [event.state for event in network.events if event.device == "a"][:2] == ["in", "out"]
            relay.mend()
            relay.release()
            assert are_in(network, "a"), network.states
            assert answered(network, reference, inputs(split, FLIGHTS, 2)) == 0
            assert network.counts.answered == 3 * FLIGHTS


def test_a_device_that_was_in_for_long_is_tried_again_soon(
    split: SplitSubNet, device: ServingDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no request went there meanwhile, as of a SubNet that is rarely chosen."""
    monkeypatch.setattr("adaptive_runtime.offload.links.peer.LONGEST_PAUSE_S", 0.2)

    async def came_in(one: Peer) -> None:
        async with asyncio.timeout(60):
            while one.state != "in":
                await asyncio.sleep(0.01)

    async def is_lost_and_back() -> None:
        one = Peer("a", device.address, split.subnets, split.files)
        one.pause_s = 3600.0
        keeping = asyncio.create_task(one.keep())
        try:
            await came_in(one)
            await asyncio.sleep(0.5)
            one.lose("was late")
            assert one.state == "out"
            await came_in(one)
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])

    asyncio.run(is_lost_and_back())


def test_a_killed_device_loses_no_request(split: SplitSubNet, reference: Reference) -> None:
    with serving() as device, SplitNetwork(split, {"a": device.address}, [PLAN], PATIENT) as network:
        assert are_in(network, "a"), network.states
        futures = [network.submit(x, DEADLINE_MS) for x in inputs(split, FLIGHTS)]
        device.process.kill()
        for x, future in zip(inputs(split, FLIGHTS), futures, strict=True):
            assert same(future.result(120).answer, reference(x))
            assert not future.result().late
        assert soon(lambda: network.states["a"][0] == "out")
        assert answered(network, reference, inputs(split, FLIGHTS)) == 0, (
            "the coordinator has the plan without the device"
        )
        told = [(event.device, event.state) for event in network.events]
        assert told[:4] == [("a", "in"), (COORDINATOR, "plan"), ("a", "out"), (COORDINATOR, "plan")]
        assert network.events[-1].reason == "coordinator 0-3: the first plan whose devices are in"


@pytest.mark.long
def test_a_frozen_device_is_late_and_comes_back(split: SplitSubNet, reference: Reference) -> None:
    with serving() as device, SplitNetwork(split, {"a": device.address}, [PLAN], PATIENT) as network:
        assert are_in(network, "a"), network.states
        assert answered(network, reference, inputs(split, FLIGHTS)) == 0
        os.kill(device.process.pid, signal.SIGSTOP)
        try:
            assert answered(network, reference, inputs(split, FLIGHTS, 1), SHORT_MS) == FLIGHTS
            assert network.states["a"] == ("out", "was late")
        finally:
            os.kill(device.process.pid, signal.SIGCONT)
        assert are_in(network, "a"), network.states
        assert answered(network, reference, inputs(split, FLIGHTS, 2)) == 0


@pytest.mark.long
def test_a_killed_model_process_is_started_again(split: SplitSubNet, reference: Reference) -> None:
    import psutil

    with serving() as device, SplitNetwork(split, {"a": device.address}, [PLAN], PATIENT) as network:
        assert are_in(network, "a"), network.states
        killed = psutil.Process(device.process.pid).children()
        assert killed
        for child in killed:
            child.kill()
        answered(network, reference, inputs(split, FLIGHTS))
        assert are_in(network, "a"), network.states
        assert answered(network, reference, inputs(split, FLIGHTS, 1)) == 0
        assert not set(psutil.Process(device.process.pid).children()) & set(killed)


def test_two_coordinators_share_a_device(split: SplitSubNet, reference: Reference, device: ServingDevice) -> None:
    with (
        SplitNetwork(split, {"a": device.address}, [PLAN], PATIENT) as first,
        SplitNetwork(split, {"a": device.address}, [PLAN], PATIENT) as second,
    ):
        assert are_in(first, "a")
        assert are_in(second, "a")
        xs = inputs(split, 20)
        futures = [one.submit(x, DEADLINE_MS) for x in xs for one in (first, second)]
        for number, future in enumerate(futures):
            assert same(future.result(120).answer, reference(xs[number // 2]))
            assert not future.result().late
        first.close()
        assert answered(second, reference, xs[:FLIGHTS]) == 0, "the other coordinator's end changes nothing"


def test_a_wrong_token_takes_the_device_out_for_good(split: SplitSubNet, device: ServingDevice) -> None:
    address = DeviceAddress(url=device.url, token="not-the-token-of-it")
    with SplitNetwork(split, {"a": address}, [PLAN], PATIENT) as network:
        assert soon(lambda: network.states["a"] == ("excluded", "refuses: missing or wrong token"))
