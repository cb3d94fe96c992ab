"""What settings do to a short training: an average of the weights, and faster arithmetic."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tasks.data import DataSettings, load
from tests.support.finetune.short_training import alone, weights


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, float]]:
    """One rank without an average of the weights, and its losses."""
    folder = tmp_path_factory.mktemp("plain")
    return folder, alone(folder)


@pytest.mark.long
def test_the_average_of_the_weights_is_the_result(
    undisturbed: Path, plain: tuple[Path, dict[int, float]], tmp_path: Path
) -> None:
    assert alone(tmp_path, average=0.9) == plain[1]
    checkpoints = [load_file(folder / "checkpoint.safetensors") for folder in (plain[0], tmp_path)]
    name = "conv1.0.weight"
    last, mean = checkpoints[1][f"model.{name}"], checkpoints[1][f"average.{name}"]
    assert torch.equal(last, checkpoints[0][f"model.{name}"])
    assert not torch.equal(last, mean)
    assert torch.nn.functional.cosine_similarity(last.flatten(), mean.flatten(), dim=0) > 0.9
    result = weights(undisturbed)[name]  # of two ranks, whose sums are rounded in another order
    assert torch.dist(result, mean) < 0.1 * torch.dist(result, last)


def test_a_last_smaller_batch_is_trained_too(tmp_path: Path) -> None:
    data = DataSettings(kind="digits", validation_share=0.45, test_share=0.48)
    planned = load(data, "train").planned(64, 2)
    assert planned.last
    assert planned.steps == 2
    rates = alone(tmp_path, data, planned)
    assert list(rates) == [1, 2]


@pytest.mark.long
@pytest.mark.parametrize("changes", [{"precision": "bfloat16"}, {"channels_last": True}])
def test_faster_arithmetic_learns_the_same(
    changes: dict[str, Any], plain: tuple[Path, dict[int, float]], tmp_path: Path
) -> None:
    exact, fast = list(plain[1].values()), list(alone(tmp_path, **changes).values())
    assert exact != fast
    assert fast[:5] == pytest.approx(exact[:5], rel=0.03)
    assert fast[-1] == pytest.approx(exact[-1], rel=0.2)
