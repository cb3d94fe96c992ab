"""The joint search finds what listing all SubNets, devices and codings finds, under the model of partitions."""

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from solvers.partition import PartitionPlanner, plan_of, stays
from tasks.placement.joint import problem_of
from tasks.placement.joint_problem import JointSearch
from tasks.search.problem import FORBIDDEN_MS
from tests.support import examples
from tests.support.joint.problems import NAMES, all_codes, net_of, random_search

ROUNDING = 1e-9
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)


def plan_ms(name: str, search: JointSearch, code: np.ndarray) -> float:
    """Latency of a code by the model of `solvers.partition`, which knows nothing of tables."""
    net, _ = net_of(name)
    space, terms = search.space, search.terms
    dataflow = net.pre_partition().under(code[: space.variables])
    problem = problem_of(dataflow, terms, terms.codings[int(code[space.coding])])
    placed = space.placed(code)
    plan = plan_of(problem, terms.conditions, stays([placed[at] for at in dataflow.positions]))
    return plan.latency_ms(terms.conditions) + terms.devices[0].offset_ms


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(5), deadline=None, phases=PHASES)
@given(seed=st.integers(0, 10_000), devices=st.integers(2, 3))
def test_the_latency_of_a_code_is_that_of_its_plan(name: str, seed: int, devices: int) -> None:
    search = random_search(name, seed, devices)
    codes = search.space.random_codes(12, np.random.default_rng(seed))
    for code, predicted_ms in zip(codes, search.latency.predict(codes).tolist(), strict=True):
        expected_ms = plan_ms(name, search, code)
        if np.isfinite(expected_ms):
            assert predicted_ms == pytest.approx(expected_ms, rel=ROUNDING)
        else:
            assert predicted_ms >= FORBIDDEN_MS


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(3), deadline=None, phases=PHASES)
@given(seed=st.integers(0, 10_000))
def test_winners_are_those_of_all_codes(name: str, seed: int) -> None:
    search = random_search(name, seed, devices=2)
    codes = all_codes(search)
    latency_ms, score = search.latency.predict(codes), search.accuracy.score(codes)
    possible = latency_ms[latency_ms < FORBIDDEN_MS]
    assert search.latency.predict(search.quickest()[None])[0] == pytest.approx(possible.min(), rel=ROUNDING)
    assert search.accuracy.score(search.best()[None])[0] == pytest.approx(score.max(), rel=ROUNDING)
    for share in (0.0, 0.1, 0.3, 0.6):
        budget_ms = possible.min() + share * np.ptp(possible)
        found = search.winner(np.array([budget_ms]))
        assert search.latency.predict(found.code[None])[0] <= budget_ms * (1 + ROUNDING)
        most = score[latency_ms <= budget_ms * (1 + 1e-12)].max()
        assert search.accuracy.score(found.code[None])[0] == pytest.approx(most, abs=ROUNDING)
        _no_other_plan_is_better(search, found.code, codes)


def _no_other_plan_is_better(search: JointSearch, code: np.ndarray, codes: np.ndarray) -> None:
    """Of the same SubNet no plan that loses no more is faster."""
    own = (codes[:, : search.space.variables] == code[: search.space.variables]).all(axis=1)
    lost = search.accuracy.losses.predict(codes[own])
    no_more = lost <= search.accuracy.losses.predict(code[None])[0] + ROUNDING
    least_ms = search.latency.predict(codes[own][no_more]).min()
    assert search.latency.predict(code[None])[0] <= least_ms * (1 + ROUNDING)


@settings(max_examples=examples(5), deadline=None, phases=PHASES)
@given(seed=st.integers(0, 10_000), devices=st.integers(2, 3))
def test_the_plan_of_a_subnet_is_that_of_the_planner(seed: int, devices: int) -> None:
    """A network without alternatives has the same cuts in all SubNets."""
    search = random_search("sizes", seed, devices, codings=1)
    net, _ = net_of("sizes")
    code = search.winner(np.array([np.inf])).code
    problem = problem_of(net.pre_partition().under(code[: search.space.variables]), search.terms, "fp32")
    plan = PartitionPlanner(problem, widest=1).fastest(search.terms.conditions)
    least_ms = plan.latency_ms(search.terms.conditions) + search.terms.devices[0].offset_ms
    assert least_ms <= search.latency.predict(code[None])[0] * (1 + ROUNDING)


def test_where_no_link_pays_nothing_is_sent() -> None:
    search = random_search("sizes", 1, devices=2)
    slow = random_search("sizes", 1, devices=2, conditions=_slow(search))
    code = slow.best()
    assert (code[slow.space.variables :] == slow.space.cardinalities[slow.space.variables :] - 1).all()
    for budget_ms in np.geomspace(1.01, 2.0, 4) * slow.latency.predict(slow.quickest()[None])[0]:
        code = slow.winner(np.array([budget_ms])).code
        assert set(slow.space.placed(code).values()) == {0}


def _slow(search: JointSearch) -> object:
    conditions = search.terms.conditions
    return type(conditions)(slow_down=np.ones(2), latency_ms=np.full((2, 2), 1e4), bandwidth_mbps=np.full((2, 2), 1e-3))


def test_a_piece_without_operators_is_where_the_one_before_it_is() -> None:
    search = random_search("alternatives", 3, devices=3)
    space = search.space
    assert any(not piece.present.always for piece in space.pieces.pieces)
    codes = space.random_codes(200, np.random.default_rng(0))
    extended = space.space.extended(codes[:, : space.variables])
    for number, (column, piece) in enumerate(zip(space.placements, space.pieces.pieces, strict=True)):
        before = codes[:, column - 1] if number else np.full(len(codes), space.home)
        absent = ~np.broadcast_to(piece.present.among(extended), len(codes))
        assert (codes[absent, column] == before[absent]).all()
    assert (space.canonical_codes(codes) == codes).all()


def test_pieces_that_are_private_stay_at_home() -> None:
    search = random_search("sizes", 5, devices=2, private=frozenset({0, 1}))
    for code in (search.quickest(), search.best(), search.winner(np.array([np.inf])).code):
        assert (code[list(search.space.placements[:2])] == search.space.home).all()
