from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.exits.calibration import CHEAPEST, ExitAnswers, _descend, find_path
from tests.support import examples

seeds = st.integers(0, 10**6)
LATENCY_MS = np.array([1.0, 2.5, 4.0, 7.0])


def drawn_answers(seed: int, images: int, exits: int, levels: int) -> ExitAnswers:
    """levels: how many different confidences there are, so that some are equal."""
    rng = np.random.default_rng(seed)
    confidences = rng.integers(0, levels, (images, exits)) / levels
    losses = rng.choice([-1, 0, 1], (images, exits), p=[0.1, 0.7, 0.2])
    losses[:, -1] = 0
    return ExitAnswers(confidences, losses)


@settings(deadline=None, max_examples=examples(60))
@given(seed=seeds, images=st.integers(1, 60), exits=st.integers(1, 4), levels=st.integers(1, 1000))
def test_along_a_path_nobody_leaves_later_and_latency_falls(seed: int, images: int, exits: int, levels: int) -> None:
    answers = drawn_answers(seed, images, exits, levels)
    path = find_path(answers, LATENCY_MS[:exits])
    assert path.shape[1] == exits - 1
    assert np.isinf(path[0]).all()
    assert (path[1:] <= path[:-1]).all()
    taken = np.array([answers.leave(bars)[0] for bars in path])
    assert (taken[0] == exits - 1).all()
    assert (taken[1:] <= taken[:-1]).all()
    assert (np.diff(LATENCY_MS[taken].mean(1)) <= 0).all()


@settings(deadline=None, max_examples=examples(60))
@given(seed=seeds, images=st.integers(1, 12), levels=st.integers(1, 30), price=st.floats(CHEAPEST, 100))
def test_no_change_of_one_threshold_is_cheaper(seed: int, images: int, levels: int, price: float) -> None:
    answers = drawn_answers(seed, images, 3, levels)
    confidences = answers.confidences_NE[:, :2]
    order = np.argsort(-confidences, 0, kind="stable")
    ordered = np.take_along_axis(confidences, order, 0)
    costs = LATENCY_MS[:3] + price * answers.losses_NE
    cuts = _descend(costs, ordered, order, np.zeros(2, np.int64))

    def cost(bars: tuple[float, ...]) -> float:
        taken, _ = answers.leave(np.array(bars))
        return float(costs[np.arange(images), taken].mean())

    bars = [np.inf if cut == 0 else ordered[cut - 1, place] for place, cut in enumerate(cuts)]
    choices = [[np.inf, *np.unique(confidences[:, place])] for place in range(2)]
    changed = [(first, bars[1]) for first in choices[0]] + [(bars[0], second) for second in choices[1]]
    assert cost(tuple(bars)) <= min(map(cost, changed)) + 1e-9
    assert cost(tuple(bars)) <= cost((np.inf, np.inf)) + 1e-9
    assert min(map(cost, product(*choices))) <= cost(tuple(bars)) + 1e-9


def test_with_one_early_exit_the_path_passes_the_best_threshold_of_every_price() -> None:
    answers = drawn_answers(1, 300, 2, 10**6)
    path = find_path(answers, LATENCY_MS[:2])
    found = [(LATENCY_MS[taken].mean(), losses.mean()) for taken, losses in map(answers.leave, path)]
    bars = [np.inf, *answers.confidences_NE[:, 0]]
    everything = [answers.leave(np.array([bar])) for bar in bars]
    for price in (0.1, 1.0, 3.0):
        best = min(LATENCY_MS[taken].mean() + price * losses.mean() for taken, losses in everything)
        assert min(ms + price * lost for ms, lost in found) <= best + 0.01
