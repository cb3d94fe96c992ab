"""Sensitivities to predicted accuracies, on a space whose truth is known."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.base.artifacts import read_json, write_json
from tasks.base.errors import UserError
from tasks.evaluation.subnets import Accuracy
from tasks.prediction.accuracy import (
    AccuracyPredictor,
    Interaction,
    MeasuredAccuracy,
    Sensitivities,
    modifications,
    sensitivities,
    standard_error,
    validate,
)


@dataclass(frozen=True)
class Variable:
    name: str
    choices: tuple[float, ...]

    @property
    def default(self) -> float:
        return self.choices[-1]


@dataclass(frozen=True)
class Space:
    variables: tuple[Variable, ...] = (
        Variable("resolution", (16, 24, 32)),
        Variable("stage1.depth", (-1, 0)),
        Variable("stage1.block2.expand_ratio", (0.15, 0.2, 0.25)),
    )


SPACE = Space()
SAMPLES = 400
LOST: dict[str, dict[float, int]] = {
    "resolution": {16: 40, 24: 12},
    "stage1.depth": {-1: 20},
    "stage1.block2.expand_ratio": {0.15: 8, 0.2: 8},
}
LOSS: dict[str, dict[float, float]] = {
    "resolution": {16: 0.3, 24: 0.1},
    "stage1.depth": {-1: 0.2},
    "stage1.block2.expand_ratio": {0.15: 0.09, 0.2: 0.04},
}


def _measure(config: Mapping[str, Any]) -> Accuracy:
    lost = sum(LOST[name].get(choice, 0) for name, choice in config.items())
    loss = sum(LOSS[name].get(choice, 0) for name, choice in config.items())
    return Accuracy(392 - lost, SAMPLES, 0.1 + loss)


@pytest.fixture
def predictor() -> AccuracyPredictor:
    return AccuracyPredictor(sensitivities(SPACE, [_measure(c) for c in modifications(SPACE)]))


def _codes() -> np.ndarray:
    return np.array([[r, d, e] for r in range(3) for d in range(2) for e in range(3)])


def _configs(codes: np.ndarray) -> list[dict[str, float]]:
    return [{v.name: v.choices[k] for v, k in zip(SPACE.variables, row, strict=True)} for row in codes]


def test_each_modification_is_listed_once_after_the_largest() -> None:
    configs = modifications(SPACE)
    assert configs[0] == {"resolution": 32, "stage1.depth": 0, "stage1.block2.expand_ratio": 0.25}
    assert len(configs) == 1 + 2 + 1 + 2
    assert all(sum(c[k] != configs[0][k] for k in c) == 1 for c in configs[1:])


def test_prediction_is_the_sum_of_sensitivities(predictor: AccuracyPredictor) -> None:
    codes = _codes()
    truth = [_measure(config) for config in _configs(codes)]
    assert predictor.predict(codes) == pytest.approx([m.share for m in truth], abs=1e-12)
    assert predictor.predict_loss(codes) == pytest.approx([m.loss for m in truth], abs=1e-12)


def test_loss_orders_equal_accuracies_and_never_more(predictor: AccuracyPredictor) -> None:
    codes = _codes()
    accuracy, loss, score = predictor.predict(codes), predictor.predict_loss(codes), predictor.score(codes)
    ahead = accuracy[:, None] > accuracy + 1e-9
    tied = np.abs(accuracy[:, None] - accuracy) <= 1e-9
    better = ahead | (tied & (loss[:, None] < loss - 1e-9))
    assert tied.sum() > len(codes)
    assert (score[:, None] > score)[better].all()
    assert np.abs(score - accuracy).max() <= 0.25 / SAMPLES


def test_prediction_below_zero_is_clipped_but_still_ordered() -> None:
    measured = [Accuracy(15 if i else 45, 50, float(i)) for i in range(6)]
    predictor = AccuracyPredictor(sensitivities(SPACE, measured))
    codes = np.array([[0, 0, 2], [0, 0, 0]])
    assert predictor.predict(codes).tolist() == [0.0, 0.0]
    assert predictor.score(codes)[0] > predictor.score(codes)[1]


def test_standard_error_matches_repeated_sampling() -> None:
    rng = np.random.default_rng(0)
    truth = [_measure(config).share for config in modifications(SPACE)]
    codes = np.array([[2, 1, 2], [1, 1, 2], [0, 0, 0]])
    drawn, stated = [], []
    for _ in range(600):
        measured = [Accuracy(int(rng.binomial(SAMPLES, p)), SAMPLES, 0.0) for p in truth]
        predictor = AccuracyPredictor(sensitivities(SPACE, measured))
        drawn.append(predictor.predict(codes))
        stated.append(predictor.standard_error(codes))
    assert np.mean(stated, axis=0) == pytest.approx(np.std(drawn, axis=0), rel=0.15)
    assert standard_error(1.0, 100) > 0


def _with_interaction(plain: AccuracyPredictor, accuracy: float, error: float = 0.0) -> AccuracyPredictor:
    """Resolution 16 and depth -1, measured together."""
    measured = Interaction(
        variables=("resolution", "stage1.depth"),
        choices=(16, -1),
        measured=MeasuredAccuracy(accuracy=accuracy, loss=0.5),
        standard_error=error,
    )
    return AccuracyPredictor(plain.table.model_copy(update={"interactions": (measured,)}))


def test_an_interaction_counts_where_a_subnet_has_both_modifications(predictor: AccuracyPredictor) -> None:
    paired = _with_interaction(predictor, 350 / SAMPLES)
    codes = _codes()
    added = paired.predict(codes) - predictor.predict(codes)
    beyond = (350 - (392 - 40 - 20)) / SAMPLES
    share = np.where(codes[:, 0] == 0, 1.0, np.where(codes[:, 0] == 1, 12 / 40, 0.0)) * (codes[:, 1] == 0)
    assert added == pytest.approx(beyond * share)
    both = np.array([[0, 0, 2]])
    assert paired.predict(both)[0] == pytest.approx(350 / SAMPLES)
    assert paired.predict_loss(both)[0] == pytest.approx(0.5)
    total = sum((values[tuple(codes[:, list(columns)].T)] for columns, values in paired.tables), np.zeros(len(codes)))
    largest = paired.score(np.array([[2, 1, 2]]))
    assert total + largest == pytest.approx(paired.score(codes), abs=1e-12)


def test_an_interaction_within_its_standard_error_does_not_count(predictor: AccuracyPredictor) -> None:
    codes, beyond = _codes(), 18 / SAMPLES
    certain, half, lost = (
        _with_interaction(predictor, 350 / SAMPLES, error).predict(codes)
        for error in (0.0, beyond / 2**0.5, 1.01 * beyond)
    )
    plain = predictor.predict(codes)
    assert lost.tolist() == plain.tolist()
    assert half - plain == pytest.approx((certain - plain) / 2)


def test_standard_error_with_interactions_matches_repeated_sampling() -> None:
    rng = np.random.default_rng(0)
    truth = [_measure(config).share for config in modifications(SPACE)]
    codes = np.array([[2, 1, 2], [0, 1, 2], [0, 0, 2], [0, 0, 0]])
    drawn, stated = [], []
    for _ in range(600):
        measured = [Accuracy(int(rng.binomial(SAMPLES, p)), SAMPLES, 0.0) for p in truth]
        plain = AccuracyPredictor(sensitivities(SPACE, measured))
        paired = _with_interaction(plain, rng.binomial(SAMPLES, 350 / SAMPLES) / SAMPLES)
        drawn.append(paired.predict(codes))
        stated.append(paired.standard_error(codes))
    assert np.mean(stated, axis=0) == pytest.approx(np.std(drawn, axis=0), rel=0.15)


@pytest.mark.parametrize("paired", [False, True])
def test_saved_predictor_predicts_the_same(predictor: AccuracyPredictor, paired: bool, tmp_path: Path) -> None:
    predictor = _with_interaction(predictor, 350 / SAMPLES, 0.01) if paired else predictor
    predictor.save(tmp_path / "sensitivities.json")
    again = AccuracyPredictor.load(tmp_path / "sensitivities.json")
    assert again.table == predictor.table
    assert (again.score(_codes()) == predictor.score(_codes())).all()


def test_an_interaction_of_what_is_no_modification_is_one_clear_line(
    predictor: AccuracyPredictor, tmp_path: Path
) -> None:
    file = tmp_path / "sensitivities.json"
    _with_interaction(predictor, 350 / SAMPLES).save(file)
    content = read_json(file)
    content["interactions"][0]["choices"][1] = 0
    write_json(file, content)
    with pytest.raises(UserError, match=r"^sensitivities '.*sensitivities\.json': .*run the predict stage again: .*$"):
        AccuracyPredictor.load(file)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"version": 1, "samples": 0, "largest": {"accuracy": 1, "loss": 0}, "variables": []}',
        '{"version": 0, "samples": 9, "largest": {"accuracy": 1, "loss": 0}, "variables": []}',
    ],
)
def test_broken_file_is_one_clear_line(content: str, tmp_path: Path) -> None:
    (tmp_path / "sensitivities.json").write_text(content)
    with pytest.raises(UserError, match=r"^sensitivities '.*sensitivities\.json': .*run the predict stage again: .*$"):
        AccuracyPredictor.load(tmp_path / "sensitivities.json")


def test_validation_states_errors_in_points_and_rank_correlation(predictor: AccuracyPredictor) -> None:
    codes = _codes()[[17, 11, 5]]
    correct = np.rint(predictor.predict(codes) * SAMPLES).astype(int) - (0, 4, 8)
    measured = [Accuracy(int(c), SAMPLES, 1.0) for c in correct]
    stated = validate(predictor, codes, measured)
    assert stated.errors.mean_error_points == pytest.approx(1.0)
    assert stated.errors.max_error_points == pytest.approx(2.0)
    assert stated.errors.kendall_tau == pytest.approx(1.0)
    assert isinstance(predictor.table, Sensitivities)
    assert [row.accuracy for row in stated.rows] == [m.share for m in measured]
