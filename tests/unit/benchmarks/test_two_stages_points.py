"""Both spaces of the two-stage measurement are valid runs that differ in alternatives alone, and quarters count all points."""

import numpy as np
import pytest

from benchmarks.two_stages import BOTH, SIZES, TASKS, bounds_of, cells, quarters, words_of
from flows.config import RunConfig
from flows.config.compose import compose_config
from flows.config.validate import validate


@pytest.mark.parametrize("task", TASKS)
def test_spaces_differ_in_alternatives_alone(task: str) -> None:
    both, sizes = (validate(RunConfig, compose_config("config", words_of(task, space, []))) for space in (BOTH, SIZES))
    assert both.space.keys() - sizes.space.keys() == {"alternatives"}
    assert both.model_copy(update={"space": sizes.space}) == sizes
    assert both.pretraining.backbone == "backbone"
    assert both.data.problem.startswith(task)


def test_quarters_have_every_point_once_and_the_best_so_far() -> None:
    points = [{"macs": macs, "score": score} for macs, score in ((0, 0.5), (2, 0.3), (3, 0.4), (8, 0.2))]
    row = {"task": "detection", "points": {BOTH: points, SIZES: points[:1]}}
    assert bounds_of(row) == [0, 2, 4, 6, 8]
    found = quarters(points, bounds_of(row))
    assert [count for count, _, _ in found] == [2, 1, 0, 1]
    assert [mean for _, mean, _ in found if not np.isnan(mean)] == pytest.approx([0.4, 0.4, 0.2])
    assert [best for _, _, best in found] == [0.5, 0.5, 0.5, 0.5]
    assert cells(row)[1][3:] == ["50.0% / 50.0% (1)", "– / 50.0% (0)", "– / 50.0% (0)", "– / 50.0% (0)"]
