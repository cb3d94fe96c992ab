"""Bits that flip between client and agent: an answer that came garbled is asked for again and never believed."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling_agents import frames
from profiling_agents.client import AgentClient, AgentError, MeasureSettings, ModelJob
from tests.support.agents import agent_models as models
from tests.support.agents import agent_processes as processes
from tests.support.agents.cut_network import Flips, Network, flipped, network

JOBS = 40
SETTINGS = MeasureSettings(warmup_ms=1.0, time_cap_ms=5.0)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with processes.started(["--backend", "onnxruntime", "--port", "0"]) as (_, printed):
        yield printed["agent ready"]


@pytest.fixture
def wire(url: str) -> Iterator[Network]:
    with network(url) as one:
        yield one


@pytest.fixture
def client(wire: Network) -> Iterator[AgentClient]:
    with AgentClient(wire.url, processes.TOKEN) as one:
        yield one


def jobs(count: int) -> list[ModelJob]:
    return [replace(models.convolution("onnxruntime", "conv"), key=str(number)) for number in range(count)]


def test_flipped_bits_lose_nothing_and_change_nothing(wire: Network, client: AgentClient) -> None:
    wire.garble = flips = Flips(0.3)
    with client.lease(ttl_s=60.0):
        for _ in range(20):  # answers that arrive together are one part: how many parts there are, is up to the machine
            found = list(client.measure(jobs(JOBS), SETTINGS))
            assert [one.key for one in found] == [str(number) for number in range(JOBS)]
            assert {one.state for one in found} == {"ok"}
            if flips.count >= 5:
                break
    assert flips.count >= 5
    assert client.capabilities().backend == "onnxruntime"


def test_an_answer_that_is_always_garbled_ends_in_one_line(wire: Network, client: AgentClient) -> None:
    wire.garble = flips = Flips(1.0)
    with pytest.raises(AgentError, match="which cannot be read; is it an AutoTailor agent\\?; asked 4 times") as caught:
        client.capabilities()
    assert "\n" not in str(caught.value)
    assert flips.count == 4


def test_results_that_are_always_garbled_end_in_one_line(wire: Network) -> None:
    with AgentClient(wire.url, processes.TOKEN, patience_s=1.0) as client, client.lease():
        numbers = client.submit(jobs(1), SETTINGS)
        wire.garble = Flips(1.0)
        with pytest.raises(AgentError, match="came garbled: it does not fit its checksum; asked") as caught:
            list(client.results(numbers))
        wire.garble = bytes
    assert "\n" not in str(caught.value)


def test_a_flipped_bit_of_an_output_is_no_other_output(wire: Network, client: AgentClient) -> None:
    job = models.convolution("onnxruntime", "conv")
    x = np.random.default_rng(1).standard_normal(job.input_shapes[0], dtype=np.float32)
    garbled = 0

    def last_number(part: bytes) -> bytes:
        nonlocal garbled
        if b'"tensors"' not in part or garbled:
            return part
        garbled += 1
        return flipped(part, len(part) - 2, 6)

    with client.lease():
        (expected,) = client.run(job, [x])
        wire.garble = last_number
        (found,) = client.run(job, [x])
    assert garbled == 1
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("position", [9, 12, 13, 16])
def test_a_garbled_head_of_an_answer_is_asked_for_again(wire: Network, client: AgentClient, position: int) -> None:
    """HTTP/1.1 200 OK: its status and reason."""
    heads = 0

    def head(part: bytes) -> bytes:
        nonlocal heads
        if not part.startswith(b"HTTP/1.1 ") or heads:
            return part
        heads += 1
        return flipped(part, position, 0)

    wire.garble = head
    assert client.capabilities().backend == "onnxruntime"
    assert heads == 1


@given(st.binary().filter(lambda content: b"\n" not in content), st.data())
def test_a_line_with_a_flipped_bit_is_refused(content: bytes, data: st.DataObject) -> None:
    line = frames.to_line(content)[:-1]
    assert frames.from_line(line) == content
    position = data.draw(st.integers(0, len(line) - 1))
    garbled = flipped(line, position, data.draw(st.integers(0, 7)))
    with pytest.raises(frames.GarbledError, match="checksum"):
        frames.from_line(garbled)


@pytest.mark.long
def test_line_breaks_of_other_kinds_in_names_are_no_ends_of_lines(client: AgentClient) -> None:
    job = models.convolution("onnxruntime", "a\u2028b\x85c\x1ed")
    (found,) = client.measure([job], SETTINGS)
    assert (found.key, found.state) == (job.key, "ok")
