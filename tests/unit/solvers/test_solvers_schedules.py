"""Orders of steps and places of their values, against brute force on small random graphs."""

from collections.abc import Iterator, Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.schedules import Interval, ScheduledStep, Workload, best_order, place
from solvers.schedules.best import least_live, least_peak, orders
from solvers.schedules.workload import ALIGNED_TO_BYTES, bits
from tests.support import examples


@st.composite
def workloads(draw: st.DrawFn, most: int = 8) -> Workload:
    """Steps that read earlier values, some of them in place, as views or twice; some values are the caller's, some are kept."""
    count = draw(st.integers(1, most))
    bytes_, buffer_of = [0], [0]  # the caller's value
    steps = []
    for _ in range(count):
        values = st.integers(0, len(buffer_of) - 1)
        reads = draw(st.lists(values, min_size=1, max_size=3, unique=True))
        writes = []
        in_place: tuple[int, ...] = ()
        if draw(st.booleans()) and draw(st.booleans()):
            buffer_of.append(buffer_of[reads[0]])  # a view
            writes = [len(buffer_of) - 1]
        else:
            for _ in range(draw(st.integers(1, 2))):
                buffer_of.append(len(bytes_))
                bytes_.append(draw(st.integers(1, 9)))
                writes.append(len(buffer_of) - 1)
            in_place = tuple(v for v in reads if bytes_[buffer_of[v]] == bytes_[buffer_of[writes[0]]])
        steps.append(ScheduledStep(reads=tuple(reads), writes=tuple(writes), in_place=in_place))
    kept = draw(st.sets(st.integers(0, len(bytes_) - 1), max_size=2))
    return Workload(steps, buffer_of, bytes_, kept)


def all_orders(load: Workload, done: int = 0) -> Iterator[tuple[int, ...]]:
    if done == load.all:
        yield ()
    for step in bits(load.ready(done, load.all)):
        for rest in all_orders(load, done | 1 << step):
            yield (step, *rest)


def closed_sets(load: Workload, start: int, end: int) -> Iterator[int]:
    """All sets of done steps between two."""
    found, new = {start}, {start}
    while new:
        new = {done | 1 << s for done in new for s in bits(load.ready(done, end))} - found
        found |= new
    return iter(found)


@settings(max_examples=examples(250), deadline=None)
@given(workloads())
def test_the_search_finds_the_least_peak_of_all_orders(load: Workload) -> None:
    least = min(map(load.peak, all_orders(load)))
    found = least_peak(load, 0, load.all, 0, least + 1, 10_000)
    assert found.order is not None
    assert load.peak(found.order) == least == found.bound_bytes
    assert least_peak(load, 0, load.all, 0, least, 10_000).order is None


@settings(max_examples=examples(100), deadline=None)
@given(workloads())
def test_the_best_order_is_optimal_and_says_so(load: Workload) -> None:
    found = best_order(load)
    assert sorted(found.order) == list(range(len(load.steps)))
    assert load.peak(found.order) == found.peak_bytes == min(map(load.peak, all_orders(load)))
    assert found.optimal


@settings(max_examples=examples(100), deadline=None)
@given(workloads(most=14), st.integers(0, 3))
def test_without_enough_visits_no_order_is_worse_than_the_given_one_and_bounds_hold(
    load: Workload, visits: int
) -> None:
    found, proven = best_order(load, visits=visits), best_order(load, visits=100_000)
    assert found.bound_bytes <= proven.peak_bytes == proven.bound_bytes <= found.peak_bytes
    assert found.peak_bytes == load.peak(found.order) <= load.peak(range(len(load.steps)))


@settings(max_examples=examples(100), deadline=None)
@given(workloads(most=12))
def test_every_heuristic_gives_a_legal_order(load: Workload) -> None:
    for order in orders(load, 0, load.all):
        assert sorted(order) == list(range(len(load.steps)))
        load.peak(order)


@settings(max_examples=examples(100), deadline=None)
@given(workloads())
def test_no_step_runs_with_less_than_its_bound(load: Workload) -> None:
    for order in all_orders(load):
        done, live = 0, 0
        for step in order:
            during, live = load.run(step, done, live)
            done |= 1 << step
            assert load.least_during(step) <= during
            assert live == load.live(done)


@settings(max_examples=examples(100), deadline=None)
@given(workloads())
def test_a_minimum_cut_is_the_least_set_with_the_least_memory(load: Workload) -> None:
    for start, end in combinations(sorted(closed_sets(load, 0, load.all), key=int.bit_count)[:12], 2):
        if start & ~end:
            continue
        least = min(closed_sets(load, start, end), key=lambda done: (load.live(done), done.bit_count()))
        assert least_live(load, start, end) == least


@settings(max_examples=examples(100), deadline=None)
@given(workloads(most=12))
def test_intervals_add_up_to_the_peak_and_their_places_do_not_overlap(load: Workload) -> None:
    order = best_order(load).order
    pieces = load.intervals(order)
    at_once = [sum(p.bytes_ for p in pieces if p.first <= at <= p.last) for at in range(len(order))]
    assert max(at_once) == load.peak(order)
    assert_apart(pieces)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=9))
def test_places_of_any_pieces_do_not_overlap(drawn: list[tuple[int, int, int]]) -> None:
    assert_apart([Interval(bytes_, min(a, b), max(a, b), (0,)) for bytes_, a, b in drawn])


def assert_apart(pieces: Sequence[Interval]) -> None:
    found = place(pieces)
    assert found.bound_bytes <= found.block_bytes
    for (a, offset), (b, other) in combinations(zip(pieces, found.offsets, strict=True), 2):
        assert offset % ALIGNED_TO_BYTES == 0
        apart = a.last < b.first or b.last < a.first
        assert apart or offset + a.bytes_ <= other or other + b.bytes_ <= offset
        assert max(offset + a.bytes_, other + b.bytes_) <= found.block_bytes


def test_pieces_that_follow_each_other_share_one_place() -> None:
    chain = [Interval(64 * size, at, at + 1, (at,)) for at, size in enumerate((3, 1, 2, 2))]
    assert place(chain).optimal
    assert place(chain).block_bytes == 64 * 4


def test_the_branch_that_leaves_less_behind_runs_before_the_one_with_the_higher_peak() -> None:
    # a: 2 -> 1; b: 8 -> 1. a first: max(2, 1 + 8); given: b, then a
    steps = [
        ScheduledStep(reads=(0,), writes=(1,)),
        ScheduledStep(reads=(1,), writes=(2,)),
        ScheduledStep(reads=(0,), writes=(3,)),
        ScheduledStep(reads=(3,), writes=(4,)),
        ScheduledStep(reads=(2, 4), writes=(5,)),
    ]
    load = Workload(steps, range(6), (0, 4, 4, 9, 1, 1), kept=(5,))
    assert load.peak(range(5)) == 4 + 9 + 1
    found = best_order(load)
    assert found.order == (2, 3, 0, 1, 4)
    assert found.peak_bytes == found.bound_bytes == 10


def test_an_order_that_is_not_legal_is_refused() -> None:
    steps = [ScheduledStep(reads=(0,), writes=(1,)), ScheduledStep(reads=(1,), writes=(2,))]
    with pytest.raises(AssertionError, match="not a legal order"):
        Workload(steps, range(3), (0, 1, 1)).peak((1, 0))
