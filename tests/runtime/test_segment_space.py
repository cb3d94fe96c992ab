"""Paths through segments: counts, draws, the exact front and mutation are those of brute force; prefixes change no answer."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from adaptive_runtime.local_search import (
    AdditiveModel,
    LatencyRange,
    LocalSearchSettings,
    PrefixTree,
    Proposer,
    SegmentSpace,
    best_front,
    cheapest_together,
    latency_ms,
    mutated,
)

Graph = tuple[SegmentSpace, np.ndarray, np.ndarray]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A space with the network's own layers between all boundaries and a few alternatives, latencies and losses."""
    last = draw(st.integers(1, 4))
    own = [(at, at + 1) for at in range(last)]
    more = draw(st.lists(st.sampled_from(list(combinations(range(last + 1), 2))), max_size=6))
    ways = [*own, *more]
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    space = SegmentSpace([start for start, _ in ways], [end for _, end in ways])
    return space, rng.uniform(0.1, 1.0, len(ways)), np.r_[np.zeros(last), rng.uniform(0, 0.1, len(more))]


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_counts_and_the_exact_front_are_those_of_brute_force(graph: Graph) -> None:
    space, ms_E, losses_E = graph
    paths = list(space.all_paths())
    assert space.count == len(paths) == len(set(paths))
    budget_ms = float(np.median([latency_ms(path, ms_E) for path in paths]))
    points = {path: (latency_ms(path, ms_E), losses_E[list(path)].sum()) for path in paths}
    within = {path: point for path, point in points.items() if point[0] <= budget_ms}
    found = best_front(space, -losses_E, ms_E, budget_ms)
    assert points[found[-1]][1] == pytest.approx(min(loss for _, loss in within.values()))
    for path in found:
        assert path in within
        assert not any(ms < points[path][0] - 1e-9 and loss < points[path][1] - 1e-9 for ms, loss in within.values())
    assert best_front(space, -losses_E, ms_E, 0.99 * min(ms for ms, _ in points.values())) == []


@settings(max_examples=60, deadline=None)
@given(graphs(), st.floats(0.1, 0.9), st.integers(0, 100))
def test_draws_and_mutations_stay_in_the_range(graph: Graph, share: float, seed: int) -> None:
    space, ms_E, _ = graph
    rng = np.random.default_rng(seed)
    times_ms = sorted(latency_ms(path, ms_E) for path in space.all_paths())
    most_ms = times_ms[int(share * len(times_ms))]
    within = LatencyRange(space, ms_E, 0.7 * most_ms, most_ms)
    path = within.sample(rng)
    assert path is not None
    assert within.has(path)
    other = mutated(space, path, within, rng)
    if other is not None:
        assert other != path
        assert within.has(other)
        assert other in set(space.all_paths())
    assert all(one in set(space.all_paths()) for one in space.replacements(path))


def test_all_subnets_in_a_range_are_drawn_equally_often() -> None:
    space = SegmentSpace([0, 0, 0, 1, 1, 2, 0], [1, 1, 1, 2, 2, 3, 2])
    ms_E = np.array([1.0, 2.0, 3.0, 1.0, 2.5, 1.0, 2.2])
    within = LatencyRange(space, ms_E, 3.5, 5.0)
    inside = [path for path in space.all_paths() if within.has(path)]
    rng, draws = np.random.default_rng(0), 6000
    seen = Counter(within.sample(rng) for _ in range(draws))
    assert set(seen) == set(inside)
    assert len(inside) > 2
    expected = draws / len(inside)
    assert all(abs(count - expected) < 5 * np.sqrt(expected) for count in seen.values())
    everywhere = Counter(space.sample(rng) for _ in range(draws))
    assert set(everywhere) == set(space.all_paths())
    expected = draws / space.count
    assert all(abs(count - expected) < 5 * np.sqrt(expected) for count in everywhere.values())


@settings(max_examples=60, deadline=None)
@given(graphs(), st.integers(1, 8), st.integers(1, 3), st.sampled_from([0, 60, 200, np.inf]), st.integers(0, 100))
def test_prefixes_change_no_answer_under_any_cap(
    graph: Graph, subnets: int, batches: int, cap_bytes: float, seed: int
) -> None:
    space, ms_E, _ = graph
    rng = np.random.default_rng(seed)
    ran: list[int] = []
    weights = rng.standard_normal((len(ms_E), 5, 5)).astype(np.float32)

    def run(number: int, x: np.ndarray) -> np.ndarray:
        ran.append(number)
        return np.asarray(np.tanh(x @ weights[number]), np.float32)

    paths = [space.sample(rng) for _ in range(subnets)]
    x = [rng.standard_normal((2, 5)).astype(np.float32) for _ in range(batches)]
    tree = PrefixTree(run, ms_E, cap_bytes)
    found = tree.classes(paths, x)
    assert tree.counts.runs == len(ran)
    assert tree.counts.alone == batches * sum(map(len, paths))
    assert tree.counts.runs <= tree.counts.alone
    prefixes = {path[:end] for path in paths for end in range(1, len(path) + 1)}
    if cap_bytes == np.inf:
        repeated = len(paths) - len(set(paths))
        assert batches * len(prefixes) <= tree.counts.runs <= batches * (len(prefixes) + repeated * space.last)
        assert tree.counts.again == 0 or repeated
    for path, own in zip(paths, found, strict=True):
        assert own.tolist() == np.concatenate([alone(run, path, one) for one in x]).tolist()


@settings(max_examples=60, deadline=None)
@given(graphs(), st.integers(1, 4), st.integers(0, 4))
def test_each_subnet_behind_the_sure_ones_adds_the_least_time(graph: Graph, sure: int, more: int) -> None:
    space, ms_E, _ = graph
    paths = list(space.all_paths())
    most = min(sure + more, len(paths))
    chosen = cheapest_together(paths, ms_E, most, min(sure, most))
    assert len(set(chosen)) == len(chosen) == most
    assert chosen[:sure] == paths[: min(sure, most)]
    for count in range(sure, most):
        added_ms = {path: tree_ms([*chosen[:count], path], ms_E) for path in set(paths) - set(chosen[:count])}
        assert added_ms[chosen[count]] == pytest.approx(min(added_ms.values()))


def tree_ms(paths: Sequence[Sequence[int]], ms_E: np.ndarray) -> float:
    """Latency of all different ways to a segment."""
    ways = {tuple(path[:depth]) for path in paths for depth in range(1, len(path) + 1)}
    return float(sum(ms_E[way[-1]] for way in ways))


def alone(run: Callable[[int, np.ndarray], np.ndarray], path: Sequence[int], x: np.ndarray) -> np.ndarray:
    for number in path:
        x = run(number, x)
    return x.argmax(1)


@settings(max_examples=30, deadline=None)
@given(graphs(), st.integers(0, 20))
def test_proposals_are_new_and_the_same_for_the_same_seed(graph: Graph, seed: int) -> None:
    space, ms_E, losses_E = graph
    assume(space.count > 3)
    budget_ms = float(np.median([latency_ms(path, ms_E) for path in space.all_paths()]))
    own = losses_E == 0

    def generations() -> tuple[list[list[tuple[int, ...]]], tuple[int, ...] | None]:
        chosen = LocalSearchSettings(budget_ms=budget_ms, population=3, generations=4, seed=seed)
        proposer = Proposer(space, ms_E, AdditiveModel(np.where(own, np.nan, losses_E), own, 0.9, 100), chosen)
        known: dict[tuple[int, ...], float] = {}
        found = []
        for number in range(4):
            paths = proposer.generation(number, known)
            assert known.keys().isdisjoint(paths)
            assert all(latency_ms(path, ms_E) <= budget_ms * (1 + 1e-9) for path in paths)
            known |= {path: 0.9 - float(losses_E[list(path)].sum()) for path in paths}
            found.append(paths)
        return found, proposer.best(known)

    first = generations()
    assert first == generations()
    assert first[0][0][0] == best_front(space, -losses_E, ms_E, budget_ms)[-1]


def test_a_model_learns_losses_and_shrinks_lucky_counts() -> None:
    rng = np.random.default_rng(0)
    space = SegmentSpace([0, 0, 0, 1, 1, 1, 2, 2], [1, 1, 1, 2, 2, 2, 3, 3])
    own = np.array([1, 0, 0, 1, 0, 0, 1, 0], bool)
    losses_E = np.array([0, 0.01, 0.1, 0, 0.02, 0.05, 0, 0.03])
    model = AdditiveModel(np.full(8, np.nan), own, 0.9, 500)
    paths = list(space.all_paths())
    truth = {path: 0.9 - losses_E[list(path)].sum() for path in paths}
    before = np.mean([abs(model.predicted(path) - truth[path]) for path in paths])
    counted = {path: rng.binomial(500, truth[path]) / 500 for path in paths}
    model.fit(counted)
    after = [abs(model.combined(path, counted[path]) - truth[path]) for path in paths]
    raw = [abs(counted[path] - truth[path]) for path in paths]
    assert np.mean(after) < np.mean(raw)
    assert np.mean([abs(model.predicted(path) - truth[path]) for path in paths]) < before / 3
