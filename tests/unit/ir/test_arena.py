"""The runtime's arena: by hand, and against its own statistics, both for sequences of requests and for whole networks."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tailor_ir
from tailor_ir.memory.layouts import Arena, Event, Release, Request, arena_peak
from tests.support.ir.elastic_networks import NETWORKS, compiled
from tests.support.ir.runtime_memory import HERE, runtime, subnet_peaks

KIB, MIB = 2**10, 2**20
SMALL_BYTES = 256  # one chunk for a result of a few floats that the runtime keeps and the prediction does not know


def in_use(events: list[Event]) -> list[int]:
    """Bytes after each event."""
    arena, found = Arena(), []
    for event in events:
        if isinstance(event, Request):
            arena.request(event.tensor, event.bytes_)
        else:
            arena.release(event.tensor)
        found.append(arena.in_use)
    return found


def random_events(rng: np.random.Generator, count: int, largest: int) -> list[Event]:
    """Sizes are spread over all magnitudes; some come twice, and what is released is any that is live."""
    events: list[Event] = []
    live: list[int] = []
    sizes = np.exp(rng.uniform(0, np.log(largest), size=count // 3)).astype(int)
    for number in range(count):
        if live and rng.random() < 0.45:
            events.append(Release(live.pop(int(rng.integers(len(live))))))
        else:
            events.append(Request(number, int(rng.choice(sizes))))
            live.append(number)
    return events


def test_requests_are_rounded_up_to_256_bytes() -> None:
    assert in_use([Request("a", 1), Request("b", 256), Request("c", 257)]) == [256, 512, 1024]


def test_a_chunk_is_split_where_it_is_at_least_twice_the_request() -> None:
    assert in_use([Request("a", MIB // 2), Request("b", MIB // 4)]) == [MIB // 2, 3 * MIB // 4]
    assert in_use([Request("a", MIB // 2 + 1)]) == [MIB]


def test_a_chunk_is_split_where_128_mib_would_be_left_over() -> None:
    assert in_use([Request("a", 300 * MIB)]) == [300 * MIB]  # of 512
    assert in_use([Request("a", 500 * MIB)]) == [512 * MIB]


def test_the_smallest_free_chunk_that_holds_a_request_serves_it() -> None:
    sizes = {"a": 300, "x": 50, "b": 200, "y": 474}  # of 1 MiB
    filled: list[Event] = [Request(name, size * KIB) for name, size in sizes.items()]
    events = [*filled, Release("a"), Release("b"), Request("c", 150 * KIB)]
    assert in_use(events)[-1] == (50 + 474 + 200) * KIB


def test_neighbours_are_joined_when_they_are_freed() -> None:
    parts: list[Event] = [Request(name, MIB // 4) for name in "abcd"]
    events = [*parts, Release("b"), Release("d"), Release("c"), Request("e", 3 * MIB // 4), Request("f", MIB // 4)]
    assert in_use(events)[-2] == MIB  # in the place of b, c and d
    assert in_use(events)[-1] == MIB + MIB // 4


def test_extensions_grow_by_powers_of_two_and_are_not_joined() -> None:
    arena = Arena()
    for number, bytes_ in enumerate((MIB, MIB, 3 * MIB, 5 * MIB)):
        arena.request(number, bytes_)
    assert [sum(chunk.bytes_ for chunk in extension) for extension in arena.extensions] == [
        MIB,
        2 * MIB,
        4 * MIB,
        8 * MIB,
    ]


def test_nothing_is_nothing() -> None:
    assert in_use([Request("a", 0), Release("a")]) == [0, 0]
    assert arena_peak([]) == 0


@pytest.mark.parametrize("largest", [4 * KIB, 600 * KIB, 20 * MIB, 300 * MIB], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_bytes_in_use_are_the_runtimes_after_every_event(seed: int, largest: int) -> None:
    events = random_events(np.random.default_rng(seed), 150, largest)
    assert in_use(events) == runtime().replay(events)


def test_regions_of_more_than_one_gib_are_the_runtimes() -> None:
    sizes = (600, 1500, 2100, 2100, 900, 1100, 1100, 900, 1000)
    requests: list[Event] = [Request(number, size * MIB) for number, size in enumerate(sizes)]
    events = [*requests, Release(1), Release(2), Request("after", 650 * MIB)]
    assert in_use(events) == runtime().replay(events)


@pytest.mark.long_cases("attention, linear and LayerNorm")
@pytest.mark.parametrize("name", NETWORKS)
def test_predicted_peak_is_what_the_arena_says(name: str, tmp_path: Path) -> None:
    net = compiled(name)
    rng = np.random.default_rng(0)
    configs = [net.max_config, net.min_config, *(net.space.sample(rng) for _ in range(4))]
    for config, measured in zip(configs, subnet_peaks(net, configs, tmp_path), strict=True):
        assert net.peak_arena_bytes(config, HERE) == pytest.approx(measured.arena, rel=0.05, abs=SMALL_BYTES), config


def test_predicted_peak_is_the_arenas_to_the_byte_over_several_regions(tmp_path: Path) -> None:
    layers = nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1),
        nn.Conv2d(24, 72, 1),
        nn.ReLU(),
        nn.Conv2d(72, 40, 3, stride=2),
        nn.Conv2d(40, 8, 1),
    )
    net = tailor_ir.compile(layers.eval(), torch.zeros(1, 3, 96, 96))
    configs = [net.max_config, net.min_config]
    peaks = subnet_peaks(net, configs, tmp_path)
    assert [net.peak_arena_bytes(config, HERE) for config in configs] == [found.arena for found in peaks]
    assert peaks[0].arena > peaks[0].asked
