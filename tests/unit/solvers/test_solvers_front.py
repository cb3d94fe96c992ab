import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.front import hypervolume, pareto_mask

coarse = st.integers(0, 12).map(lambda k: k / 4)
points = st.lists(st.tuples(coarse, coarse), min_size=0, max_size=30)


def _dominates(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return a[0] <= b[0] and a[1] >= b[1] and a != b


@given(points)
def test_front_is_non_dominated_complete_and_distinct(drawn: list[tuple[float, float]]) -> None:
    table = np.array(drawn, float).reshape(-1, 2)
    mask = pareto_mask(table[:, 0], table[:, 1])
    front = [p for p, kept in zip(drawn, mask, strict=True) if kept]
    assert not any(_dominates(a, b) for a in drawn for b in front)
    assert set(front) == {b for b in drawn if not any(_dominates(a, b) for a in drawn)}
    assert len(front) == len(set(front))


def test_of_equal_points_the_first_is_kept() -> None:
    assert pareto_mask(np.array([2.0, 2.0]), np.array([0.5, 0.5])).tolist() == [True, False]


@given(points)
def test_hypervolume_equals_the_count_of_dominated_cells(drawn: list[tuple[float, float]]) -> None:
    table = np.array(drawn, float).reshape(-1, 2)
    area = hypervolume(table[:, 0], table[:, 1], reference_cost=2.5, reference_gain=0.5)
    corners = [(x / 4, y / 4) for x in range(10) for y in range(2, 12)]
    cells = sum(any(x0 <= x and y0 >= y + 0.25 for x0, y0 in drawn) for x, y in corners)
    outside = sum((2.5 - x) * (y - 3.0) for x, y in drawn if y > 3.0)
    assert outside == 0
    assert area == pytest.approx(cells / 16, abs=1e-12)


def test_hypervolume_of_a_known_staircase() -> None:
    area = hypervolume(
        np.array([1.0, 2.0, 3.0, 9.0]), np.array([0.5, 0.7, 0.6, 0.9]), reference_cost=4, reference_gain=0.4
    )
    assert area == pytest.approx(1 * 0.1 + 2 * 0.3)
