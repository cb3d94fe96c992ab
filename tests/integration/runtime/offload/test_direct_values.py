"""Values go straight from one device to another: rightly, through the coordinator where that fails, to allowed ones alone."""

import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from adaptive_runtime.offload.links import DeviceAddress
from adaptive_runtime.offload.split import COORDINATOR, PlacedSegments, SplitNetwork, SplitOptions, SplitSubNet
from profiling_agents.messages import (
    STREAM_PROTOCOL,
    GivenValues,
    HelloDevice,
    MissedValues,
    RanSegments,
    Receiver,
    RunSegments,
    SentActivation,
    SentProbe,
    coded_bytes,
)
from profiling_agents.serving.giving import GivingValues
from profiling_agents.streams import proof_of
from tests.integration.agents.test_agents_cli import write_certificate
from tests.integration.runtime.offload.test_segments_attacks import FP32, Caller, calling, frame, loaded
from tests.support.agents.agent_processes import TOKEN, refused, soon
from tests.support.links.devices import Reference, ServingDevice, are_in, inputs, same, serving
from tests.support.links.hostile import HostileDevice, hostile
from tests.support.links.relay import address_of, relayed

PLAN = PlacedSegments(devices=(COORDINATOR, "b", "c", "c"))
DEADLINE_MS = 60_000.0
SHORT_MS = 10_000.0
"""Of requests that a frozen link keeps: the coordinator begins them 8 s before, that is after 2 s."""
PATIENT = SplitOptions(spare_ms=8_000.0)
"""The tests' machine is busy with other work, and stands still at times."""
BOUNDARY_BYTES = 4 * 16 * 8 * 8


def at(url: str) -> str:
    """HOST:PORT."""
    return urlsplit(url).netloc


@pytest.fixture(scope="module")
def taker() -> Iterator[ServingDevice]:
    with serving() as one:
        yield one


@pytest.fixture(scope="module")
def giver(taker: ServingDevice) -> Iterator[ServingDevice]:
    with serving("onnxruntime", "--allow-peer", at(taker.url), "--allow-peer", "127.0.0.1:9") as one:
        yield one


def states(network: SplitNetwork, link: str = "b→c") -> list[str]:
    """Of a link between two devices, one after the other."""
    return [event.state for event in network.events if event.device == link]


def has_states(network: SplitNetwork, expected: list[str]) -> bool:
    return states(network) == expected


def test_a_value_goes_straight_from_one_device_to_the_next(
    split: SplitSubNet, reference: Reference, giver: ServingDevice, taker: ServingDevice
) -> None:
    with relayed(taker.url) as relay:
        way = DeviceAddress(url=address_of(relay), token=TOKEN, peer_url=taker.url)
        options = SplitOptions(check_share=1.0)
        with SplitNetwork(split, {"b": giver.address, "c": way}, [PLAN], options) as network:
            assert are_in(network), network.states
            for number, x in enumerate(inputs(split, 6)):
                before = relay.bytes["up"]
                found = network.infer(x, DEADLINE_MS)
                assert same(found.answer, reference(x))
                assert found.devices == (COORDINATOR, "b", "c")
                assert found.on_coordinator is None
                assert number == 0 or relay.bytes["up"] - before < BOUNDARY_BYTES, (
                    "the coordinator asks, and sends no value"
                )
            assert soon(lambda: states(network) == ["in"])
            link = network.direct_links["b", "c"]
            assert link.round_trip_ms is not None
            assert soon(lambda: network.counts.checked > 0)
            assert network.counts.wrong == 0


@pytest.mark.parametrize("coding", ["fp16", "int8"])
def test_values_that_go_straight_are_coded_once(
    coding: Any, split: SplitSubNet, reference: Reference, giver: ServingDevice, taker: ServingDevice
) -> None:
    options = SplitOptions(coding=coding)
    with SplitNetwork(split, {"b": giver.address, "c": taker.address}, [PLAN], options) as network:
        assert are_in(network), network.states
        (x,) = inputs(split, 1)
        assert same(network.infer(x, DEADLINE_MS).answer, reference(x), 0.1 if coding == "int8" else 5e-3)
        assert soon(lambda: states(network) == ["in"])


def test_many_requests_go_straight_at_once(
    split: SplitSubNet, reference: Reference, giver: ServingDevice, taker: ServingDevice
) -> None:
    xs = inputs(split, 30)
    with SplitNetwork(split, {"b": giver.address, "c": taker.address}, [PLAN], PATIENT) as network:
        assert are_in(network), network.states
        futures = [network.submit(x, DEADLINE_MS) for x in xs]
        for x, future in zip(xs, futures, strict=True):
            assert same(future.result(120).answer, reference(x))
            assert not future.result().late
        assert network.counts.answered == len(xs)
        assert network.counts.by_device["c"] > 1


@pytest.mark.parametrize(
    ("peer_url", "line"),
    [
        ("tcp://127.0.0.1:9", "127.0.0.1:9: "),
        (
            "tcp://192.0.2.1:80",
            "192.0.2.1:80 is not allowed here; its operator allows it with --allow-peer 192.0.2.1:80",
        ),
    ],
)
def test_where_a_device_cannot_be_reached_coordinator_carries_the_value(
    peer_url: str, line: str, split: SplitSubNet, reference: Reference, giver: ServingDevice, taker: ServingDevice
) -> None:
    away = DeviceAddress(url=taker.url, token=TOKEN, peer_url=peer_url)
    with SplitNetwork(split, {"b": giver.address, "c": away}, [PLAN], PATIENT) as network:
        assert are_in(network), network.states
        for x in inputs(split, 3):
            found = network.infer(x, DEADLINE_MS)
            assert same(found.answer, reference(x))
            assert found.devices == (COORDINATOR, "b", "c")
            assert found.on_coordinator is None
        assert set(states(network)) == {"out"}
        assert line in next(event.reason for event in network.events if event.device == "b→c")
        assert not network.direct_links
        assert {name: state for name, (state, _) in network.states.items()} == {"b": "in", "c": "in"}


@pytest.mark.long
def test_the_way_between_two_devices_has_tls_of_its_own(
    split: SplitSubNet, reference: Reference, tmp_path: Path
) -> None:
    certificate, key = write_certificate(tmp_path)
    secure = ("--host", "0.0.0.0", "--tls-cert", str(certificate), "--tls-key", str(key))
    with serving("onnxruntime", *secure) as taker:
        url = taker.url.replace("0.0.0.0", "127.0.0.1")
        way = DeviceAddress(url=url, token=TOKEN, ca_file=certificate)
        for words, state in ((("--ca-file", str(certificate)), "in"), ((), "out")):
            with (
                serving("onnxruntime", "--allow-peer", at(url), *words) as giver,
                SplitNetwork(split, {"b": giver.address, "c": way}, [PLAN], PATIENT) as network,
            ):
                assert are_in(network), network.states
                (x,) = inputs(split, 1)
                found = network.infer(x, DEADLINE_MS)
                assert same(found.answer, reference(x))
                assert found.on_coordinator is None
                assert soon(partial(has_states, network, [state]))
        assert "CERTIFICATE_VERIFY_FAILED" in next(e.reason for e in network.events if e.device == "b→c")


def test_a_device_whose_operator_allows_nobody_is_not_asked_to_give(
    split: SplitSubNet, reference: Reference, taker: ServingDevice, device: ServingDevice
) -> None:
    with SplitNetwork(split, {"b": device.address, "c": taker.address}, [PLAN], PATIENT) as network:
        assert are_in(network), network.states
        (x,) = inputs(split, 1)
        found = network.infer(x, DEADLINE_MS)
        assert same(found.answer, reference(x))
        assert found.devices == (COORDINATOR, "b", "c")
        assert states(network) == []


@pytest.mark.long
def test_a_frozen_link_between_two_devices_costs_no_deadline(
    split: SplitSubNet, reference: Reference, taker: ServingDevice
) -> None:
    with relayed(taker.url) as relay, serving("onnxruntime", "--allow-peer", f"127.0.0.1:{relay.port}") as giver:
        way = DeviceAddress(url=taker.url, token=TOKEN, peer_url=address_of(relay))
        with SplitNetwork(split, {"b": giver.address, "c": way}, [PLAN], PATIENT) as network:
            assert are_in(network), network.states
            for x in inputs(split, 3):
                assert same(network.infer(x, DEADLINE_MS).answer, reference(x))
            assert soon(lambda: states(network) == ["in"])
            relay.hold()
            for x in inputs(split, 3, 1):
                found = network.infer(x, SHORT_MS)
                assert same(found.answer, reference(x))
                assert not found.late
            assert states(network)[:2] == ["in", "out"]
            assert network.counts.answered == 6
            assert {name: state for name, (state, _) in network.states.items()} == {"b": "in", "c": "in"}


def test_a_device_that_gives_wrong_values_straight_is_found_once_it_works_through_coordinator(
    split: SplitSubNet, reference: Reference, taker: ServingDevice
) -> None:
    giving = GivingValues([at(taker.url)])
    liar = HostileDevice(split, values=lambda arrays: [1.5 * array for array in arrays], giving=giving)
    options = SplitOptions(check_share=0.5)
    with hostile(liar) as address, SplitNetwork(split, {"b": address, "c": taker.address}, [PLAN], options) as network:
        assert are_in(network), network.states
        (x,) = inputs(split, 1)

        def is_excluded() -> bool:
            """Whether it is, after one more request: checks come behind the answers."""
            network.infer(x, DEADLINE_MS)
            return network.states["b"][0] == "excluded"

        assert soon(is_excluded), network.events
        assert network.states["c"][0] == "in"
        assert "one of them answered wrongly" in next(e.reason for e in network.events if e.state == "out")
        assert same(network.infer(x, DEADLINE_MS).answer, reference(x))


# what a hostile the coordinator does to a giver


def run_for(split: SplitSubNet, **changes: Any) -> RunSegments:
    fields = {"request": 7, "first": 0, "last": 0, "tensors": (FP32,), "coding": "fp32", "within_ms": 60_000.0}
    return RunSegments.model_validate({**fields, **changes})


@contextmanager
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as victim:
        victim.settimeout(0.3)
        yield victim


@pytest.mark.parametrize(
    "url",
    [
        "tcp://127.0.0.1:{port}",
        "tcp://localhost:{port}",
        "tls://127.0.0.1:{port}",
        "tcp://{allowed}@127.0.0.1:{port}",
        "tcp://{allowed}#@127.0.0.1:{port}",
        "tcp://{allowed}/@127.0.0.1:{port}",
        "http://127.0.0.1:{port}/",
        "tcp://[::ffff:127.0.0.1]:{port}",
        "tcp://0177.0.0.1:{port}",
        "tcp://[",
        "",
    ],
)
def test_a_coordinator_cannot_make_a_device_connect_to_an_address_that_is_not_allowed(
    url: str, split: SplitSubNet, giver: ServingDevice, taker: ServingDevice
) -> None:
    with listening() as victim, loaded(giver, split) as caller:
        port = victim.getsockname()[1]
        told = url.format(port=port, allowed=at(taker.url))
        receiver = Receiver(url=told, digest="0" * 64, proof="0" * 64, ticket="0" * 32)
        caller.send(frame(run_for(split, receiver=receiver), bytes(4 * 3 * 16 * 16)))
        answer = caller.told()
        assert isinstance(answer, RanSegments)
        assert answer.given is None
        assert answer.not_given
        assert "\n" not in answer.not_given
        assert len(answer.tensors) == 1, "the coordinator gets the values"
        with pytest.raises(TimeoutError):
            victim.accept()


def test_a_proof_that_is_none_is_refused_by_the_taker_and_told(
    split: SplitSubNet, giver: ServingDevice, taker: ServingDevice
) -> None:
    with loaded(giver, split) as caller:
        receiver = Receiver(url=taker.url, digest="0" * 64, proof="0" * 64, ticket="0" * 32)
        caller.send(frame(run_for(split, receiver=receiver), bytes(4 * 3 * 16 * 16)))
        answer = caller.told()
        assert isinstance(answer, RanSegments)
        assert "refuses: missing or wrong proof of the token" in answer.not_given


# what a hostile device does to a taker


@contextmanager
def as_giver(device: ServingDevice, split: SplitSubNet) -> Iterator[Caller]:
    digest = split.subnet.digest
    with calling(device) as caller:
        hello = HelloDevice(protocol=STREAM_PROTOCOL, digest=digest, proof=proof_of(TOKEN, digest))
        assert caller.ask(hello).protocol == STREAM_PROTOCOL
        yield caller


def test_the_proof_is_of_the_token_and_of_the_subnet(split: SplitSubNet, taker: ServingDevice) -> None:
    digest = split.subnet.digest
    for proof in ("0" * 64, proof_of("another-token-of-coordinator", digest), proof_of(TOKEN, "0" * 64)):
        with calling(taker) as caller:
            caller.send(frame(HelloDevice(protocol=STREAM_PROTOCOL, digest=digest, proof=proof)))
            assert caller.refused() == "missing or wrong proof of the token"


def test_another_device_gives_values_and_asks_for_nothing(split: SplitSubNet, taker: ServingDevice) -> None:
    for message, payload in (
        (SentProbe(request=0, bytes=0, back=1 << 18), b""),
        (run_for(split), bytes(4 * 3 * 16 * 16)),
    ):
        with as_giver(taker, split) as caller:
            caller.send(frame(message, payload))
            assert caller.refused() == "another device gives values, and nothing else"


@contextmanager
def waiting(taker: ServingDevice, split: SplitSubNet, ticket: str) -> Iterator[Caller]:
    """A coordinator whose run waits for its values."""
    with loaded(taker, split) as coordinator:
        coordinator.send(frame(run_for(split, ticket=ticket, tensors=(), within_ms=60_000.0)))
        yield coordinator


ATTACKS: dict[str, tuple[dict[str, Any], int, dict[str, int], str]] = {
    "an unknown ticket": ({"ticket": "f" * 32}, 3072, {}, "values that no run waits for"),
    "no tensor": ({"tensors": ()}, 0, {}, "0 tensors; the run waits for 1"),
    "a huge tensor": ({}, 0, {"payload_bytes": 2**60}, f"payload of {2**60} bytes; allowed here: 3072"),
    "another type": ({"tensors": (SentActivation(coding="fp16"),)}, 3072, {}, "allowed here: 1536"),
    "a garbled tensor": ({}, 3072, {"payload_sum": 3}, "its payload does not fit its checksum"),
}


@pytest.mark.parametrize("case", ATTACKS)
def test_values_that_no_run_waits_for_end_the_connection_and_harm_no_run(
    case: str, split: SplitSubNet, taker: ServingDevice
) -> None:
    changes, size, stated, line = ATTACKS[case]
    ticket = secrets.token_hex(16)
    with waiting(taker, split, ticket) as coordinator:
        fields = {"request": 1, "ticket": ticket, "tensors": (FP32,), **changes}
        with as_giver(taker, split) as caller:
            caller.send(frame(GivenValues.model_validate(fields), bytes(size), **stated))
            assert line in caller.refused()
        with as_giver(taker, split) as caller:  # the run waits on, and takes what it waits for
            right = GivenValues(request=2, ticket=ticket, tensors=(FP32,))
            assert caller.ask(right, bytes(coded_bytes([(1, 3, 16, 16)], (FP32,)))).request == 2
            assert coordinator.told().request == 7
            caller.send(frame(right, bytes(3072)))
            assert "values that no run waits for" in caller.refused(), "a ticket counts once"


def test_values_that_break_off_leave_the_run_to_coordinator(split: SplitSubNet, taker: ServingDevice) -> None:
    ticket = secrets.token_hex(16)
    values = np.ones(3 * 16 * 16, np.float32).tobytes()
    given = GivenValues(request=1, ticket=ticket, tensors=(FP32,))
    with waiting(taker, split, ticket) as coordinator:
        with as_giver(taker, split) as caller:
            caller.send(frame(given, values)[:-100])
        time.sleep(0.2)
        coordinator.send(frame(given.model_copy(update={"request": 8}), values))
        assert {coordinator.told().request for _ in range(2)} >= {8}


@pytest.mark.long
def test_a_run_whose_values_do_not_come_is_told_as_missed(split: SplitSubNet, taker: ServingDevice) -> None:
    with loaded(taker, split) as coordinator:
        coordinator.send(frame(run_for(split, ticket="a" * 32, tensors=(), within_ms=100.0)))
        assert coordinator.told() == MissedValues(request=7)
        late = GivenValues(request=8, ticket="a" * 32, tensors=(FP32,))
        assert coordinator.ask(late, bytes(3072)).request == 8, "values that come too late are read and thrown away"
        coordinator.send(frame(run_for(split, ticket="b" * 32)))
        assert "1 tensors; segments 0 to 0 come with its ticket" in coordinator.refused()


@pytest.mark.long
def test_allowed_devices_are_of_devices_that_serve_segments() -> None:
    assert "--allow-peer: for --serve-segments alone" in refused("--backend", "onnxruntime", "--allow-peer", "a:1")
    for wrong in ("a", "a:x", "a:99999", "u@a:1", "a:1/x"):
        line = refused("--backend", "onnxruntime", "--serve-segments", "--allow-peer", wrong)
        assert f"argument --allow-peer: invalid HOST:PORT value: '{wrong}'" in line
