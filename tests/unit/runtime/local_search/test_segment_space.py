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
    PathScore,
    PrefixTree,
    Proposer,
    SegmentSpace,
    best_front,
    latency_ms,
    most_for_time,
    mutated,
)
from adaptive_runtime.local_search.space import TIME_ANYWAY
from tests.support import examples

Graph = tuple[SegmentSpace, np.ndarray, np.ndarray]


def score(accuracy: float) -> PathScore:
    """With a cross-entropy as networks have it."""
    return PathScore(accuracy, 3 * (1 - accuracy))


FULL = score(0.9)


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


@settings(max_examples=examples(60), deadline=None)
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


@settings(max_examples=examples(60), deadline=None)
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


@settings(max_examples=examples(60), deadline=None)
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
    logits = dict(tree.logits(paths, x))
    found = [logits[at].argmax(1) for at in range(len(paths))]
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


@settings(max_examples=examples(60), deadline=None)
@given(graphs(), st.integers(1, 6), st.integers(0, 100))
def test_each_next_subnet_is_worth_most_for_its_time(graph: Graph, most: int, seed: int) -> None:
    space, ms_E, _ = graph
    paths = list(space.all_paths())
    worth = np.random.default_rng(seed).uniform(0.1, 1.0, len(paths))
    chosen = most_for_time(paths, worth, ms_E, most)
    assert len(set(chosen)) == len(chosen) == min(most, len(paths))
    assert chosen[0] == paths[0]
    for count, path in enumerate(chosen[1:], 1):
        before = chosen[:count]
        rates = {
            other: worth[at]
            / (tree_ms([*before, other], ms_E) - tree_ms(before, ms_E) + TIME_ANYWAY * latency_ms(other, ms_E))
            for at, other in enumerate(paths)
            if other not in before
        }
        assert rates[path] == pytest.approx(max(rates.values()))


def tree_ms(paths: Sequence[Sequence[int]], ms_E: np.ndarray) -> float:
    """Latency of all different ways to a segment."""
    ways = {tuple(path[:depth]) for path in paths for depth in range(1, len(path) + 1)}
    return float(sum(ms_E[way[-1]] for way in ways))


def alone(run: Callable[[int, np.ndarray], np.ndarray], path: Sequence[int], x: np.ndarray) -> np.ndarray:
    for number in path:
        x = run(number, x)
    return x.argmax(1)


@settings(max_examples=examples(30), deadline=None)
@given(graphs(), st.integers(0, 20))
def test_proposals_are_new_and_the_same_for_the_same_seed(graph: Graph, seed: int) -> None:
    space, ms_E, losses_E = graph
    assume(space.count > 3)
    budget_ms = float(np.median([latency_ms(path, ms_E) for path in space.all_paths()]))
    own = losses_E == 0

    def generations() -> tuple[list[list[tuple[int, ...]]], tuple[int, ...] | None]:
        chosen = LocalSearchSettings(budget_ms=budget_ms, population=3, generations=4, seed=seed)
        proposer = Proposer(space, ms_E, AdditiveModel(np.where(own, np.nan, losses_E), own, FULL, 100), chosen)
        known: dict[tuple[int, ...], PathScore] = {}
        found = []
        for number in range(4):
            paths = proposer.generation(number, known)
            assert known.keys().isdisjoint(paths)
            assert all(latency_ms(path, ms_E) <= budget_ms * (1 + 1e-9) for path in paths)
            known |= {path: score(0.9 - float(losses_E[list(path)].sum())) for path in paths}
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
    model = AdditiveModel(np.full(8, np.nan), own, FULL, 500)
    paths = list(space.all_paths())
    truth = {path: 0.9 - losses_E[list(path)].sum() for path in paths}
    before = np.mean([abs(model.predicted(path) - truth[path]) for path in paths])
    counted = {path: PathScore(rng.binomial(500, truth[path]) / 500, 3 * (1 - truth[path])) for path in paths}
    model.fit(counted)
    after = [abs(model.combined(path, counted[path].accuracy) - truth[path]) for path in paths]
    raw = [abs(counted[path].accuracy - truth[path]) for path in paths]
    assert np.mean(after) < np.mean(raw)
    assert np.mean([abs(model.predicted(path) - truth[path]) for path in paths]) < before / 3


def test_expected_improvement_is_the_mean_of_what_is_above_the_best() -> None:
    space = SegmentSpace([0, 0, 0, 1, 1, 1], [1, 1, 1, 2, 2, 2])
    own = np.array([1, 0, 0, 1, 0, 0], bool)
    model = AdditiveModel(np.array([0, 0.01, np.nan, 0, 0.03, 0.02]), own, FULL, 500)
    paths = list(space.all_paths())
    model.fit({path: score(0.85 - 0.01 * at) for at, path in enumerate(paths[:5])})
    rng, best, draws = np.random.default_rng(0), 0.87, 40_000
    offset = model.predicted(paths[0]) - FULL.accuracy + model.mean_E[list(paths[0])].sum()
    losses = np.array([model.draw(rng) for _ in range(draws)])
    for path, expected in zip(paths, model.improvement(paths, best), strict=True):
        noise = np.sqrt(model.residual_variance) * rng.standard_normal(draws)
        above = np.maximum(0.0, FULL.accuracy + offset - losses[:, list(path)].sum(1) + noise - best)
        assert expected == pytest.approx(above.mean(), abs=5 * above.std() / np.sqrt(draws))
