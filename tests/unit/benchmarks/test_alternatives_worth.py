"""Spaces are trained for equal time, their fronts share one corner, and kinds of alternatives are held against each other."""

import pytest

from benchmarks.alternatives_worth import COMMON, MEASURED, SPACES
from benchmarks.equal_time import Plan, whole_epochs
from benchmarks.replacements import Duel, Single, best_trade, best_trades, duels, kind_of, occurrences, stage_of
from benchmarks.space_fronts import fronts_of, ratio_to_better
from flows.config import RunConfig
from flows.config.compose import compose_config
from flows.config.validate import validate
from tailor_ir import Config
from tasks.search.baselines.stage import Point

FIRST, SECOND = "stage.1.block.1.block", "stage.2.block.2.block"


@pytest.mark.parametrize("space", SPACES)
def test_every_space_is_a_valid_run_that_changes_nothing_else(space: str) -> None:
    words = [*COMMON, *SPACES[space], *Plan(("branches", "tune"), (2, 3), 9.0).overrides, *MEASURED]
    config = validate(RunConfig, compose_config("config", words))
    assert ("alternatives" in config.space) == (space != "sizes")
    assert ("resolution" in config.space) == (space != "alternatives")
    assert (config.finetune.epochs, config.finetune.phase_shares) == (5, (2, 3))
    assert (config.base.epochs, config.base.learning_rate, config.search.method) == (12, 0.002, "exact")


@pytest.mark.parametrize("shares", [(1,), (1, 1), (2, 1, 1)])
def test_whole_epochs_take_the_time_that_was_asked_for(shares: tuple[float, ...]) -> None:
    epoch_s = (17.0, 9.0, 6.0)[: len(shares)]
    found = whole_epochs(360, shares, epoch_s)
    total_s = sum(number * one_s for number, one_s in zip(found, epoch_s, strict=True))
    assert total_s == pytest.approx(360, rel=0.03)
    for number, share, one_s in zip(found, shares, epoch_s, strict=True):
        assert number * one_s == pytest.approx(360 * share / sum(shares), abs=2 * one_s)


def test_each_phase_has_an_epoch_however_short_the_time() -> None:
    assert whole_epochs(1, (1, 1), (50, 70)) == (1, 1)


def test_fronts_of_all_spaces_are_below_one_corner() -> None:
    points = {
        "sizes": {"a": Point(2.0, 0.8, 0.8), "b": Point(4.0, 0.9, 0.9)},
        "alternatives": {"c": Point(3.0, 0.9, 0.9), "slower and worse": Point(4.0, 0.7, 0.7)},
        "both": {"d": Point(1.0, 0.6, 0.6), "e": Point(2.0, 0.9, 0.9)},
    }
    found = fronts_of(points)
    assert {(row["reference_ms"], row["reference_accuracy"]) for row in found.values()} == {(4.0, 0.6)}
    volumes = {space: row["hypervolume"] for space, row in found.items()}
    assert volumes == pytest.approx({"sizes": 2 * 0.2, "alternatives": 1 * 0.3, "both": 2 * 0.3})
    assert ratio_to_better(found) == pytest.approx(1.5)
    assert len(found["alternatives"]["front"]) == 1


def test_the_best_trade_saves_most_of_what_loses_little() -> None:
    singles = [
        Single(FIRST, "pruned_0.25", 0.3, 2.0),
        Single(FIRST, "pruned_0.5", 0.1, 0.5),
        Single(FIRST, "separable", -0.2, -0.1),
        Single(SECOND, "separable", -0.1, 0.0),
        Single(SECOND, "merged_2", 0.4, 0.6),
    ]
    assert best_trade(singles[:3]) == singles[1]
    assert best_trade(singles[3:]) is None
    assert best_trades(singles) == {"stage.1": {"pruned": 1}, "stage.2": {"original": 1}}


def test_a_kind_beats_another_if_it_is_faster_at_no_more_loss() -> None:
    singles = [
        Single(FIRST, "pruned_0.25", 0.3, 0.4),
        Single(FIRST, "pruned_0.5", 0.1, 0.1),
        Single(FIRST, "separable", 0.2, 0.4),
        Single(SECOND, "pruned_0.25", 0.3, 0.4),
        Single(SECOND, "pruned_0.5", 0.1, 0.1),
        Single(SECOND, "separable", 0.4, 0.2),
    ]
    assert duels(singles) == [Duel("pruned", "separable", blocks=2, faster=1, beats=1, beaten=0)]


def test_blocks_of_winners_are_counted_by_kind_and_stage() -> None:
    defaults = {FIRST: "original", SECOND: "original"}
    configs: list[Config] = [{FIRST: "low_rank_0.5", SECOND: "original", "resolution": 32}, {FIRST: "merged_2"}]
    assert occurrences(configs, defaults) == {"stage.1": {"low_rank": 0.5, "merged": 0.5}, "stage.2": {}}
    assert (kind_of("low_rank_0.25"), stage_of(SECOND)) == ("low_rank", "stage.2")
