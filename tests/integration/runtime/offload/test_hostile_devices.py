"""Whatever a device answers: the coordinator allocates no more than the SubNet has, answers rightly once, and takes it out."""

import asyncio
import tracemalloc
from typing import Any

import numpy as np
import pytest

from adaptive_runtime.offload.split import COORDINATOR, PlacedSegments, SplitNetwork, SplitOptions, SplitSubNet
from profiling_agents.messages import RanSegments
from tests.integration.runtime.offload.test_segments_attacks import frame
from tests.support.agents.agent_processes import soon
from tests.support.links.devices import Reference, are_in, inputs, same
from tests.support.links.hostile import HostileDevice, fp32, hostile

PATIENT = SplitOptions(spare_ms=8_000.0)
"""The tests' machine is busy with other work, and stands still at times."""
PLAN = PlacedSegments(devices=(COORDINATOR, "a", "a", "a"))
DEADLINE_MS = 10_000.0
FLIGHTS = 4


async def huge(device: HostileDevice, message: RanSegments, content: bytes) -> None:
    assert device.writer is not None
    device.writer.write(frame(message, payload_bytes=2**60))


async def huge_header(device: HostileDevice, message: RanSegments, content: bytes) -> None:
    assert device.writer is not None
    device.writer.write(frame(message, header_bytes=2**31))


async def twice(device: HostileDevice, message: RanSegments, content: bytes) -> None:
    assert device.frames is not None
    for _ in range(2):
        await device.frames.send(message, [content])


async def to_nobody(device: HostileDevice, message: RanSegments, content: bytes) -> None:
    assert device.frames is not None
    await device.frames.send(message.model_copy(update={"request": 10**6}), [content])


async def many_tensors(device: HostileDevice, message: RanSegments, content: bytes) -> None:
    assert device.frames is not None
    await device.frames.send(message.model_copy(update={"tensors": fp32(100)}), [content * 100])


async def garbled(device: HostileDevice, message: RanSegments, content: bytes) -> None:
    assert device.writer is not None
    device.writer.write(frame(message, content, payload_sum=1))


async def broken_off(device: HostileDevice, message: RanSegments, content: bytes) -> None:
    assert device.writer is not None
    device.writer.write(frame(message, content)[:-7])
    await device.writer.drain()
    device.writer.close()


async def silent(device: HostileDevice, message: RanSegments, content: bytes) -> None:
    await asyncio.sleep(0)


BREAKING: dict[str, tuple[Any, str]] = {
    "a huge payload": (huge, f"payload of {2**60} bytes; allowed here: 20"),
    "a huge header": (huge_header, "header of 2147483648 bytes"),
    "an answer to nobody": (to_nobody, "request 1000000, for which the coordinator does not wait"),
    "too many tensors": (many_tensors, "100 tensors; allowed here: 1 in fp32"),
    "a garbled answer": (garbled, "its payload does not fit its checksum"),
    # the end of the connection is noticed by reading inside of the answer, or by sending the next request
    "an answer that breaks off": (broken_off, "onnection"),
    "silence": (silent, "was late"),
}


@pytest.mark.parametrize("case", BREAKING)
def test_a_device_that_breaks_the_rules_goes_out_and_coordinator_answers(
    case: str, split: SplitSubNet, reference: Reference
) -> None:
    answer, line = BREAKING[case]
    device = HostileDevice(split, answer=answer)
    with hostile(device) as address, SplitNetwork(split, {"a": address}, [PLAN], PATIENT) as network:
        assert are_in(network, "a"), network.states
        xs = inputs(split, FLIGHTS)
        tracemalloc.start()
        futures = [network.submit(x, DEADLINE_MS) for x in xs]
        answers = [future.result(120) for future in futures]
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        for x, found in zip(xs, answers, strict=True):
            assert same(found.answer, reference(x))
            assert found.on_coordinator is not None or found.devices == (
                COORDINATOR,
            )  # planned after the device had gone
            assert not found.late
        assert answers[0].on_coordinator is not None
        assert any(line in event.reason for event in network.events if event.state == "out"), network.events
        assert most < 8 << 20
        assert network.counts.answered == FLIGHTS


def test_a_second_answer_to_a_request_counts_as_a_broken_rule(split: SplitSubNet, reference: Reference) -> None:
    device = HostileDevice(split, answer=twice)
    with hostile(device) as address, SplitNetwork(split, {"a": address}, [PLAN], PATIENT) as network:
        assert are_in(network, "a")
        (x,) = inputs(split, 1)
        assert same(network.infer(x, DEADLINE_MS).answer, reference(x))
        assert soon(lambda: any("does not wait" in event.reason for event in network.events))
        assert network.counts.answered == 1


def test_wrong_answers_are_found_by_checks_and_the_device_never_comes_back(
    split: SplitSubNet, reference: Reference
) -> None:
    device = HostileDevice(split, values=lambda arrays: [array * np.float32(1.01) for array in arrays])
    options = SplitOptions(check_share=0.25)
    with hostile(device) as address, SplitNetwork(split, {"a": address}, [PLAN], options) as network:
        assert are_in(network, "a")
        (x,) = inputs(split, 1)

        def is_excluded() -> bool:
            """Whether it is, after one more request: checks come behind the answers."""
            network.infer(x, DEADLINE_MS)
            return network.states["a"][0] == "excluded"

        assert soon(is_excluded)
        assert "answered wrongly: segments 1 to 3 differ by 0.01" in network.states["a"][1]
        runs = device.runs
        assert runs > 0
        for x in inputs(split, 10):
            assert same(network.infer(x, DEADLINE_MS).answer, reference(x))
        assert device.runs == runs
        assert network.counts.wrong >= 1


def test_answers_with_nan_are_not_given_on(split: SplitSubNet, reference: Reference) -> None:
    device = HostileDevice(split, values=lambda arrays: [np.full_like(array, np.nan) for array in arrays])
    with hostile(device) as address, SplitNetwork(split, {"a": address}, [PLAN], PATIENT) as network:
        assert are_in(network, "a")
        (x,) = inputs(split, 1)
        assert same(network.infer(x, DEADLINE_MS).answer, reference(x))
        assert soon(lambda: network.states["a"][0] == "excluded")


def test_a_device_with_other_weights_is_refused_by_its_digest(split: SplitSubNet) -> None:
    device = HostileDevice(split, digest="0" * 64)
    with hostile(device) as address, SplitNetwork(split, {"a": address}, [PLAN], PATIENT) as network:
        assert soon(lambda: network.states["a"][0] == "excluded")
        assert "has another SubNet (0000000000000000…" in network.states["a"][1]
        assert device.runs == 0
