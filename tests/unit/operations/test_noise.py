"""The tests of a night: p-values that are as large as they say, and Holm's procedure over them."""

import numpy as np
import pytest

from tasks.operations.nightly.noise import (
    UNKNOWN,
    DrawnFront,
    Scatter,
    holm,
    p_slower,
    ratio_at_equal_accuracy,
    typical_ms,
)


def test_p_values_of_a_tolerated_change_are_uniform_at_most() -> None:
    rng = np.random.default_rng(0)
    drawn = np.exp(0.02 * rng.standard_normal((4000, 2, 5)))
    p_values = np.array([p_slower(before, 1.05 * now, 0.05) for before, now in drawn])
    for level in (0.01, 0.05, 0.2):
        assert (p_values <= level).mean() <= level + 4 * np.sqrt(level * (1 - level) / len(p_values))
    assert np.median([p_slower(before, 1.3 * now, 0.05) for before, now in drawn[:200]]) < 1e-3
    scatters = Scatter.fit(drawn[:, 0]), Scatter.fit(drawn[:, 1])
    assert np.median([p_slower(before, 1.3 * now, 0.05, scatters) for before, now in drawn[:200]]) < 1e-4


def operators(
    rng: np.random.Generator, count: int, freedom: float, deviation: float
) -> tuple[np.ndarray, tuple[Scatter, Scatter]]:
    """Rounds (operator, night, round) whose variances differ by chance from operator to operator, and the nights' scatters."""
    variances = deviation**2 * freedom / rng.chisquare(freedom, size=(count, 2, 1))
    rounds = np.exp(np.sqrt(variances) * rng.standard_normal((count, 2, 5)))
    return rounds, (Scatter.fit(rounds[:, 0]), Scatter.fit(rounds[:, 1]))


def test_scatter_is_that_of_the_operators() -> None:
    for freedom in (2.0, 4.0, 8.0):
        _, scatters = operators(np.random.default_rng(0), 4000, freedom, 0.05)
        for one in scatters:
            assert np.sqrt(one.variance) == pytest.approx(0.93 * 0.05, rel=0.06), "less without the slowest round"
            assert 0.6 * freedom < one.freedom < 1.3 * freedom, (
                "rather too few: variances without the slowest differ more"
            )
    equal = Scatter.fit(np.exp(0.05 * np.random.default_rng(0).standard_normal((4000, 5))))
    assert equal.freedom > 30
    assert Scatter.fit([[1.0, 1.1, 1.2]] * 4) == UNKNOWN[0], "too few operators tell nothing of each other"


@pytest.mark.few("1000.0")
@pytest.mark.parametrize("freedom", [3.0, 8.0, 1000.0])
def test_p_values_with_the_scatter_of_forty_operators_are_uniform_at_most(freedom: float) -> None:
    rng, p_values = np.random.default_rng(1), []
    for _ in range(100):
        rounds, scatters = operators(rng, 40, freedom, 0.08)
        p_values += [p_slower(before, 1.05 * now, 0.05, scatters) for before, now in rounds]
    for level in (1e-3, 0.01, 0.05, 0.2):
        assert np.mean(np.array(p_values) <= level) <= level + 4 * np.sqrt(level * (1 - level) / len(p_values))


def test_with_the_scatter_of_all_operators_more_of_those_that_got_slower_are_found() -> None:
    rounds, scatters = operators(np.random.default_rng(2), 400, 8.0, 0.08)
    alone = np.array([p_slower(before, 1.5 * now, 0.05) for before, now in rounds])
    moderated = np.array([p_slower(before, 1.5 * now, 0.05, scatters) for before, now in rounds])
    least = 0.01 / 50  # of Holm's first among fifty
    assert (alone <= least).mean() < 0.6
    assert (moderated <= least).mean() > 0.8


def test_one_round_beside_others_on_the_machine_hides_no_change_and_makes_none() -> None:
    before, now = [6.3, 6.4, 6.35, 9.1, 6.4], [9.4, 9.5, 9.45, 9.5, 12.6]
    assert typical_ms(before) == pytest.approx(6.36, abs=0.02)
    assert typical_ms([2.0, 8.0]) == pytest.approx(4.0), "of two rounds none is left out"
    assert p_slower(before, now, 0.05) < 1e-4
    assert p_slower([*sorted(before)[:4], 6.38], before, 0.05) > 0.5
    rng = np.random.default_rng(3)
    rounds = np.exp(0.01 * rng.standard_normal((4000, 2, 5)) + (rng.random((4000, 2, 5)) < 0.1) * 0.3)
    p_values = np.array([p_slower(before, 1.05 * now, 0.05) for before, now in rounds])
    for level in (1e-3, 0.01, 0.05):
        assert (p_values <= level).mean() <= level + 4 * np.sqrt(level * (1 - level) / len(p_values))


def test_rounds_that_are_equal_to_the_last_digit_are_not_taken_for_certain() -> None:
    assert p_slower([1.0] * 5, [1.0501] * 5, 0.05) > 0.01
    assert p_slower([1.0] * 5, [1.2] * 5, 0.05) < 1e-5
    calm = Scatter.fit([[1.0] * 5] * 40)
    assert p_slower([1.0] * 5, [1.0501] * 5, 0.05, (calm, calm)) > 0.01
    assert p_slower([1.0] * 5, [1.2] * 5, 0.05, (calm, calm)) < 1e-6


@pytest.mark.parametrize(
    ("p_values", "rejected"),
    [
        ([], []),
        ([0.004, 0.02, 0.03, 0.04], [True, False, False, False]),
        ([0.04, 0.001, 0.012, 0.01], [True, True, True, True]),
        ([0.0126, 0.0126, 0.9], [True, True, False]),
    ],
)
def test_holm_takes_the_smallest_first_and_stops_at_the_first_that_is_too_large(
    p_values: list[float], rejected: list[bool]
) -> None:
    assert holm(p_values, 0.05) == rejected


def test_the_area_under_a_front_is_the_mean_accuracy_over_budgets() -> None:
    front = DrawnFront.draw([[1.0] * 4, [2.0] * 4, [3.0] * 4], [0.5, 0.4, 0.8], None)
    areas = front.areas(4.0)  # 0 below 1 ms, 0.5 up to 3 ms, 0.8 from there on
    assert areas.mean() == pytest.approx((2 * 0.5 + 1 * 0.8) / 4, rel=1e-2)
    assert front.areas(2.5).mean() == pytest.approx(1.5 * 0.5 / 2.5, rel=1e-2)


def test_latency_at_equal_accuracy_is_of_the_accuracies_that_both_nights_reach() -> None:
    before = DrawnFront.draw([[1.0, 1.01, 0.99], [2.0, 2.02, 1.98]], [0.7, 0.9], None)
    now = DrawnFront.draw([[1.5, 1.51, 1.49]], [0.8], None)
    ratio = ratio_at_equal_accuracy(before, now)
    assert ratio is not None
    assert ratio[0] == pytest.approx(1.5, rel=0.01)
    assert ratio_at_equal_accuracy(now, DrawnFront.draw([[1.0, 1.0, 1.0]], [0.1], None)) is None
