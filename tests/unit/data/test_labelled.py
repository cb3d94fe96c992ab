"""Samples with targets beside samples without: the true score beside the fidelity, and what cannot have one in one line."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError

from tasks.base.errors import UserError
from tasks.data import DataSettings
from tasks.data.loading import load_labelled
from tasks.data.settings import OwnProblem
from tasks.evaluation.subnets import tallied

COUNT = 30
OWN = """
import torch
from autotailor import Data
x = torch.linspace(-1, 1, 30).reshape(30, 1)

def near(outputs, targets):
    return ((outputs - targets).abs() < 0.5).float().flatten()

def samples():
    return Data(x, labelled=(x, (x > 0).long().flatten()))

def plain():
    return Data(x)
"""


def by_sign(x: torch.Tensor) -> torch.Tensor:
    """Class 1 for a positive mean."""
    mean = x.flatten(1).mean(1)
    return torch.stack([-mean, mean], 1)


def score(settings: DataSettings) -> float:
    dataset = load_labelled(settings)
    assert dataset is not None
    assert len(dataset) == COUNT
    return tallied(by_sign, dataset.batches(7), dataset.problem).score


@pytest.mark.parametrize(("order", "expected"), [(None, 1.0), ((1, 0), 0.0)])
def test_folders_of_pictures_are_classes_in_the_order_of_the_outputs(
    order: tuple[int, ...] | None, expected: float, tmp_path: Path
) -> None:
    for number in range(COUNT):
        folder = tmp_path / ("a dark" if number % 2 else "bright/more")
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 12), (10,) * 3 if number % 2 else (240,) * 3).save(folder / f"{number}.png")
    settings = DataSettings(
        kind="unlabelled", path=tmp_path, labelled=tmp_path, shape=(3, 8, 8), class_order=order, mean=(0.5,)
    )
    assert score(settings) == expected


@pytest.fixture
def files(tmp_path: Path) -> Path:
    x = np.linspace(-1, 1, COUNT, dtype=np.float32).reshape(COUNT, 1)
    np.savez(tmp_path / "classes.npz", x=x, labels=(x[:, 0] > 0).astype(np.int32))
    np.savez(tmp_path / "values.npz", x=x, targets=np.abs(x))
    np.savez(tmp_path / "more.npz", x=x, labels=np.arange(COUNT))
    np.savez(tmp_path / "none.npz", x=x)
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


def given(files: Path, name: str, own: str | None = None) -> DataSettings:
    problem = None if own is None else OwnProblem(kind="fidelity", score=f"{files}/own.py:{own}")
    return DataSettings(kind="unlabelled", path=files / "none.npz", labelled=files / name, own_problem=problem)


def test_arrays_of_a_file_have_classes_or_a_score_of_the_users_own(files: Path) -> None:
    assert score(given(files, "classes.npz")) == 1.0
    dataset = load_labelled(given(files, "values.npz", "near"))
    assert dataset is not None
    found = tallied(lambda x: x, dataset.batches(7), dataset.problem)
    assert found.score == pytest.approx(np.mean(np.linspace(-1, 1, COUNT) > -0.25))
    assert len(found.each_N) == COUNT


def test_data_of_the_users_own_give_them_too(files: Path) -> None:
    own = DataSettings(kind="own", name=f"{files}/own.py:samples", own_problem=OwnProblem(kind="fidelity"))
    assert score(own) == 1.0
    assert load_labelled(own.model_copy(update={"name": f"{files}/own.py:plain"})) is None
    assert load_labelled(DataSettings(kind="digits")) is None


def test_samples_without_fitting_targets_are_one_line(files: Path) -> None:
    with pytest.raises(UserError, match=r"data\.labelled.*arrays x; allowed: the inputs and 'labels' or 'targets'"):
        load_labelled(given(files, "none.npz"))
    with pytest.raises(UserError, match=r"data\.labelled.*classes up to number 6 for outputs \(2,\).*problem\.score"):
        score(given(files, "more.npz"))
    with pytest.raises(UserError, match=r"data\.labelled.*targets that are no classes"):
        score(given(files, "values.npz"))
    problem = OwnProblem(kind="own", loss="a.py:b", score="a.py:c")
    with pytest.raises(ValidationError, match=r"data\.labelled=.* is for problem=fidelity, not own"):
        DataSettings(kind="unlabelled", path=files, labelled=files, own_problem=problem)
    with pytest.raises(ValidationError, match="takes no loss"):
        OwnProblem(kind="fidelity", loss="a.py:b")
