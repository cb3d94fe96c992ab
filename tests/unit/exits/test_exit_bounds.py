import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from tasks.exits.settings import NUISANCE_SHARE, images_needed, p_value
from tests.support import examples


def probability(lost: int, gained: int, images: int, p_lost: float, p_gained: float) -> float:
    shares = (p_lost, p_gained, 1 - p_lost - p_gained)
    return float(stats.multinomial.pmf((lost, gained, images - lost - gained), images, shares))


def at_most(difference: int, images: int, p_lost: float, p_gained: float) -> float:
    """P(lost − gained ≤ difference), by adding image to image."""
    distribution = np.ones(1)
    for _ in range(images):
        distribution = np.convolve(distribution, [p_gained, 1 - p_lost - p_gained, p_lost])
    return float(distribution[: images + difference + 1].sum())


@pytest.mark.few("60-0.05", "60-0.2")
@pytest.mark.parametrize("level", [0.05, 0.2])
@pytest.mark.parametrize("images", [60, 100])
def test_a_promise_is_broken_no_more_often_than_its_level_by_exact_enumeration(images: int, level: float) -> None:
    epsilon = 0.1
    outcomes = [(lost, gained) for lost in range(images + 1) for gained in range(images + 1 - lost)]
    believed = [each for each in outcomes if p_value(*each, images, epsilon, level) <= level]
    assert believed
    worst = 0.0
    for more in (0.0, 0.02, 0.1):  # what is lost beyond epsilon
        for p_gained in (0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.35):
            p_lost = epsilon + more + p_gained
            broken = sum(probability(*each, images, p_lost, p_gained) for each in believed)
            assert broken <= level + 1e-12
            worst = max(worst, broken)
    assert worst > 0.25 * level  # and it is not far from the level: the test has power


@settings(max_examples=examples(60), deadline=None)
@given(
    images=st.integers(20, 120),
    changed=st.floats(0, 0.4),
    lost_share=st.floats(0, 1),
    epsilon=st.floats(0.02, 0.3),
    level=st.floats(0.01, 0.3),
)
def test_no_number_of_changes_up_to_its_bound_makes_a_small_difference_more_probable(
    images: int, changed: float, lost_share: float, epsilon: float, level: float
) -> None:
    lost = round(changed * lost_share * images)
    gained = round(changed * (1 - lost_share) * images)
    found = p_value(lost, gained, images, epsilon, level)
    bound = stats.beta.isf(NUISANCE_SHARE * level, lost + gained + 1, images - lost - gained)
    assume(bound > epsilon)
    for changing in np.linspace(epsilon, bound, 7):
        exact = at_most(lost - gained, images, (changing + epsilon) / 2, (changing - epsilon) / 2)
        assert min(1, exact + NUISANCE_SHARE * level) <= found + 1e-9


@given(lost=st.integers(0, 20), gained=st.integers(0, 20))
@settings(max_examples=examples(40), deadline=None)
def test_losing_more_is_never_more_believable(lost: int, gained: int) -> None:
    assert p_value(lost, gained, 1000, 0.02, 0.05) <= p_value(lost + 1, gained, 1000, 0.02, 0.05)


@pytest.mark.parametrize("epsilon", [0.002, 0.01, 0.03, 0.2])
@pytest.mark.parametrize("level", [0.01, 0.05, 0.2])
def test_so_many_images_are_enough_and_one_fewer_is_not(epsilon: float, level: float) -> None:
    needed = images_needed(epsilon, level)
    assert all(p_value(0, 0, needed + more, epsilon, level) <= level for more in (0, 1, 2, 5, 50))
    assert all(p_value(0, 0, needed - fewer, epsilon, level) > level for fewer in (1, 2, 3) if fewer < needed)
