"""The metric of accuracy predictors, and the learned one that others are compared with."""

import numpy as np
import pytest

from benchmarks.mlp import Mlp, one_hot
from benchmarks.ranking import Truth, best_found, draw_groups, tied
from tasks.evaluation.subnets import Accuracy


def test_groups_have_no_subnet_twice() -> None:
    groups = draw_groups(30, 50, 20, seed=0)
    assert groups.shape == (50, 20)
    assert all(len(set(group)) == 20 for group in groups.tolist())
    assert set(groups.ravel().tolist()) == set(range(30))


def test_the_best_is_found_when_it_is_among_the_five_predicted_best() -> None:
    truth = np.arange(20.0)
    groups = np.stack([np.arange(20), np.arange(20)[::-1]])
    assert best_found(truth, truth, groups) == 1.0
    assert best_found(-truth, truth, groups) == 0.0
    fifth, sixth = truth.copy(), truth.copy()
    fifth[19], sixth[19] = 14.5, 13.5
    assert best_found(fifth, truth, groups) == 1.0
    assert best_found(sixth, truth, groups) == 0.0


def test_random_scores_find_the_best_as_often_as_chance() -> None:
    rng = np.random.default_rng(0)
    groups = draw_groups(5000, 1000, 50, seed=0)
    found = np.mean([best_found(rng.random(5000), rng.random(5000), groups) for _ in range(20)])
    assert found == pytest.approx(5 / 50, abs=0.02)


def test_equally_accurate_subnets_are_ordered_by_loss_in_the_rank_only() -> None:
    truth = Truth.of([Accuracy(9, 10, 0.5), Accuracy(9, 10, 0.4), Accuracy(8, 10, 0.1)])
    assert truth.accuracy.tolist() == [0.9, 0.9, 0.8]
    assert truth.rank.tolist() == [1, 2, 0]
    groups = np.array([[0, 1, 2]])
    assert tied(truth.accuracy, groups) == 2.0
    assert tied(truth.rank, groups) == 1.0


def test_a_learned_predictor_learns_a_sum_and_is_the_same_for_the_same_seed() -> None:
    rng = np.random.default_rng(0)
    cardinalities = np.array([2, 3, 4])
    codes = rng.integers(0, cardinalities, (60, 3))
    assert one_hot(codes, cardinalities).sum(1).tolist() == [3.0] * 60
    values = 0.7 + 0.1 * codes[:, 0] + 0.02 * codes[:, 1] - 0.03 * codes[:, 2]
    learned, again = (Mlp(codes[:40], values[:40], cardinalities, seed=0, steps=100) for _ in range(2))
    predicted = learned.predict(codes[40:])
    assert np.abs(predicted - values[40:]).max() < 0.03
    assert (again.predict(codes[40:]) == predicted).all()
