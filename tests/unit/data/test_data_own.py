"""Samples of the user's own: every form of samples, splits, and one line for each form that cannot be taken."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from tasks.base.errors import UserError
from tasks.base.own_code import LIVE
from tasks.data import DataSettings, load_splits
from tasks.data.own import Data
from tasks.data.problems import problem_named
from tasks.data.samples import SampleForm, SeveralInputs
from tasks.training.finetune.settings import Settings as FinetuneSettings

COUNT = 60
X = torch.rand(COUNT, 3, 6, 10, generator=torch.Generator().manual_seed(0))
Y = torch.arange(COUNT) % 3


class Named(Dataset[dict[str, torch.Tensor]]):
    """Samples as dictionaries."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"image": X[index], "pose": X[index, 0, 0, :4], "level": Y[index], "depth": X[index, 1]}


class Streamed(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples that come one after the other."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        yield from zip(X, Y, strict=True)


def doubled(rows: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """A way of its own to make a batch."""
    x, y = zip(*rows, strict=True)
    return 2 * torch.stack(x), torch.stack(y)


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Callable[..., DataSettings]:
    def made(given: Any, **options: Any) -> DataSettings:
        monkeypatch.setitem(LIVE, "live:samples", given if isinstance(given, Data) else Data(given))
        return DataSettings(kind="own", name="live:samples", **options)

    return made


FORMS: dict[str, tuple[Any, float]] = {
    "dataset": (TensorDataset(X, Y), 1),
    "loader": (DataLoader(TensorDataset(X, Y), batch_size=7, shuffle=True), 1),
    "own batches": (DataLoader(TensorDataset(X, Y), collate_fn=doubled), 2),
    "stream": (DataLoader(Streamed()), 1),
    "sequence": (list(zip(X, Y, strict=True)), 1),
    "arrays": ((X, Y), 1),
    "numpy": ((X.numpy().astype(np.float64), Y.numpy()), 1),
}


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_give_the_same_samples(form: str, settings: Callable[..., DataSettings]) -> None:
    given, factor = FORMS[form]
    splits = load_splits(settings(given, test_share=0.25, validation_share=0.25))
    assert sum(map(len, splits.values())) == COUNT
    found = [
        torch.cat(columns) for columns in zip(*(b for one in splits.values() for b in one.batches(8)), strict=True)
    ]
    places = [int((X * factor - one).flatten(1).abs().sum(1).argmin()) for one in found[0]]
    assert sorted(places) == list(range(COUNT))
    torch.testing.assert_close(found[0], factor * X[places])
    assert found[1].tolist() == Y[places].tolist()
    assert splits["train"].form == SampleForm((3, 6, 10), given=True)


def test_given_splits_stay_and_missing_ones_are_shares(settings: Callable[..., DataSettings]) -> None:
    splits = load_splits(settings(Data((X[:40], Y[:40]), test=(X[40:], Y[40:]))))
    (x, y), *_ = splits["test"].batches(20)
    torch.testing.assert_close(x, X[40:])
    assert y.tolist() == Y[40:].tolist()
    assert len(splits["train"]) + len(splits["validation"]) == 40


def test_names_divide_dictionaries_into_inputs_in_their_order_and_targets(
    settings: Callable[..., DataSettings],
) -> None:
    train = load_splits(settings(Data(Named(), inputs=["pose", "image"])))["train"]
    x, target = next(train.batches(4))
    assert isinstance(train.form, SeveralInputs)
    assert {name: one.shape for name, one in train.form.inputs.items()} == {"pose": (4,), "image": (3, 6, 10)}
    assert [tuple(one.shape) for one in x] == [(4, 4), (4, 3, 6, 10)]
    assert {name: tuple(one.shape) for name, one in target.items()} == {"level": (4,), "depth": (4, 6, 10)}


def test_whole_numbers_of_one_axis_are_looked_up(settings: Callable[..., DataSettings]) -> None:
    tokens = torch.randint(0, 17, (COUNT, 5), generator=torch.Generator().manual_seed(1))
    tokens[3, 2] = 41
    train = load_splits(settings((tokens, Y)))["train"]
    assert train.form == SampleForm((5,), 42, given=True)
    assert next(train.batches(2))[0].dtype == torch.int64


LINES = {
    "unnamed dictionaries": (Named(), {}, r"samples are dictionaries with image, pose, level, depth.*data.names="),
    "unknown name": (Named(), {"names": ("image", "sound")}, r"samples are dictionaries"),
    "three parts": ([(1.0, 2.0, 3.0)] * COUNT, {}, r"a sample is 3 parts.*name the inputs"),
    "no samples": (torch.zeros(0, 3), {}, "gives no samples"),
    "no data": (17, {}, "gives int.*DataLoader"),
}


@pytest.mark.parametrize("case", LINES)
def test_other_forms_are_one_line(case: str, settings: Callable[..., DataSettings]) -> None:
    given, options, line = LINES[case]
    with pytest.raises(UserError, match=line):
        load_splits(settings(given, **options))


def test_an_error_of_a_dataset_is_one_line_with_its_sample(settings: Callable[..., DataSettings]) -> None:
    class Broken(Named):
        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            raise ValueError("no such picture")

    with pytest.raises(UserError, match=r"sample 0 cannot be read \(ValueError: no such picture\)"):
        load_splits(settings(Broken(), names=("image",)))


def test_a_function_in_a_file_gives_the_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n\ndef splits(count=40):\n    x = torch.rand(count, 3, 6, 10)\n"
        "    return (x, torch.arange(count) % 2), (x, torch.arange(count) % 2)\n"
    )
    monkeypatch.chdir(tmp_path)
    given = DataSettings(kind="own", name="mine.py:splits", options={"count": 30})
    assert len(load_splits(given)["validation"]) == 30
    with pytest.raises(UserError, match=r"cannot be called.*data.options"):
        load_splits(given.model_copy(update={"options": {"cuont": 30}}))
    with pytest.raises(ValidationError, match=r"data.kind=own needs data.name=FILE.py:function"):
        DataSettings(kind="own", name="mine.py")


def test_objects_of_another_process_are_one_line() -> None:
    with pytest.raises(UserError, match=r"is an object of the process that called autotailor\.tailor"):
        load_splits(DataSettings(kind="own", name="live:nothing-0"))


@pytest.mark.parametrize(("problem", "share"), [("own", 0.0), ("fidelity", 1.0), ("classification", 1.0)])
def test_subnets_learn_from_answers_unless_the_loss_is_the_users_own(problem: str, share: float) -> None:
    distils = problem_named(problem).distils
    assert FinetuneSettings().soft_share("sandwich", distils) == share
    assert FinetuneSettings(teacher="base").soft_share("sandwich", distils) == 1.0
    assert FinetuneSettings(distillation=0.5).soft_share("sandwich", distils) == 0.5
