"""Networks with states: samples that follow one another stay together, and SubNets are scored with their own states.

Legend: N samples, W samples of a window, F features, S numbers of a state.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flows.config import RunConfig
from tailor_ir import SuperNet
from tasks.base.errors import UserError
from tasks.base.progress import Silent
from tasks.data import Dataset, load_splits
from tasks.data.batches import tensors
from tasks.data.dataset import Split
from tasks.evaluation.subnets import EvaluationData, accuracies, accuracy
from tasks.evaluation.unrolling import Unrolled
from tasks.training.compile import supernet_of
from tasks.training.finetune.settings import Settings
from tests.unit.data.test_files_with_state import CELL, SHAPES, F, S, config_of, taken, written

N, W = 330, 20
RUNS = N // W


def x_NF() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(N, F)).astype(np.float32)


@pytest.fixture
def cell(tmp_path: Path) -> Path:
    return written(tmp_path / "cell.onnx", CELL, SHAPES, zero=np.zeros(1, np.int64))


def of_cell(cell: Path, *options: str) -> RunConfig:
    return config_of(cell, {"x": x_NF()}, "model.constants={sr:1}", f"data.window={W}", "data.unroll=4", *options)


def numbers(dataset: Dataset, batch_size: int, seed: int | None = None) -> np.ndarray:
    """The places in the file of all samples of a dataset, in the order of its batches."""
    x = torch.cat([tensors(batch)[0] for batch, _ in dataset.batches(batch_size, seed=seed)]).numpy()
    return np.abs(x_NF()[None] - x[:, None]).sum(-1).argmin(1)


@given(samples=st.integers(1, 12), length=st.integers(1, 5))
def test_unrolled_is_step_by_step(samples: int, length: int) -> None:
    rng = torch.Generator().manual_seed(samples)
    x, h = torch.randn(samples, 3, generator=rng), torch.randn(samples, 2, generator=rng)
    weights = torch.randn(5, 2, generator=rng)

    def step(x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        new = torch.tanh(torch.cat([x, h], 1) @ weights)
        return 2 * new, new

    found = Unrolled(step, {1: 1}, length)(x, h)
    wanted, state = [], h[:1]
    for row in range(samples):
        before = h[row : row + 1] if row % length == 0 else state
        y, state = step(x[row : row + 1], before)
        wanted.append((y, state))
    for one, rows in zip(found, zip(*wanted, strict=True), strict=True):
        torch.testing.assert_close(one, torch.cat(rows))


def test_windows_stay_together_in_splits_and_their_parts_in_batches_of_training(cell: Path) -> None:
    splits = load_splits(of_cell(cell).data)
    source = splits["train"].source
    assert (source.run_length, source.unroll) == (W, 4)
    assert source.notes == (
        f"data: the last {N % W} of {N} samples are left out, behind runs of {W} samples that follow one another",
    )
    in_order = {name: numbers(one, 7).reshape(-1, W) for name, one in splits.items()}
    for runs in in_order.values():
        assert (runs == runs[:, :1] + np.arange(W)).all()
        assert not (runs[:, 0] % W).any()
    together = np.concatenate([runs.ravel() for runs in in_order.values()])
    assert sorted(together) == list(range(RUNS * W))
    shuffled = numbers(splits["train"], 40, seed=3)
    parts = shuffled[: len(shuffled) // 4 * 4].reshape(-1, 4)
    assert (parts == parts[:, :1] + np.arange(4)).all()
    assert (np.diff(parts[:, 0]) < 0).any()
    assert len(set(shuffled)) == len(shuffled)


@pytest.fixture
def net(cell: Path, tmp_path: Path) -> tuple[SuperNet, dict[Split, Dataset]]:
    config = of_cell(cell)
    teacher = tmp_path / "teacher.onnx"
    form = load_splits(config.data)["train"].form
    teacher.write_bytes(taken(cell, form, constants=config.model.constants).SerializeToString())
    known = config.data.model_copy(update={"teacher": teacher})
    return supernet_of(config.compile, config.model, known, None, None), load_splits(known)


def test_scores_are_those_of_own_states(net: tuple[SuperNet, dict[Split, Dataset]], tmp_path: Path) -> None:
    supernet, splits = net
    images = EvaluationData(splits["validation"], splits["train"])
    configs = [supernet.max_config, supernet.min_config]
    found = accuracies(supernet, configs, images, tmp_path / "found.jsonl", Silent())
    runs = numbers(splits["validation"], W).reshape(-1, W)
    assert found[0].share == pytest.approx(1, abs=1e-4)
    assert found[1].share < 0.95
    module = supernet.build(supernet.min_config).eval()
    state, steps = torch.zeros(len(runs), 1, S), []
    for step in range(W):
        with torch.no_grad():
            y, state = module(torch.from_numpy(x_NF()[runs[:, step]]), state)
        steps.append((y, state))
    outputs = tuple(torch.stack(each, 1).flatten(0, 1) for each in zip(*steps, strict=True))
    ((_, target),) = splits["validation"].batches(runs.size)
    tally = images.problem.tally()
    tally.add(outputs, target)
    assert found[1].share == pytest.approx(tally.found().score, abs=1e-6)
    assert accuracy(supernet, supernet.min_config, images).share == pytest.approx(found[1].share, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("data.unroll=3",), "data.unroll: 3; allowed: 1, 2, 4, 5, 10, 20, which divide"),
        (
            ("finetune.micro_batch=6", "finetune.batch_size=12"),
            "micro_batch: 6 samples that follow one another in runs of 4",
        ),
    ],
)
def test_other_lengths_are_refused_in_one_line(cell: Path, options: tuple[str, ...], line: str) -> None:
    config = of_cell(cell, *options)
    with pytest.raises(UserError) as caught:
        load_splits(config.data)["train"].planned(config.finetune.batch_size or 64, config.finetune.micro_batches)
    assert line in str(caught.value)


@pytest.mark.parametrize(
    ("length", "given_sizes", "sizes"),
    [
        (8, {}, (64, 32)),
        (20, {}, (60, 60)),
        (50, {}, (100, 100)),
        (20, {"batch_size": 80, "micro_batch": 40}, (80, 40)),
    ],
)
def test_batches_are_whole_runs_unless_sizes_are_given(
    length: int, given_sizes: dict[str, int], sizes: tuple[int, int]
) -> None:
    found = Settings.model_validate(given_sizes).for_samples(1000, length)
    assert (found.batch_size, found.micro_batch) == sizes
    assert found.micro_batch % length == 0


@pytest.mark.parametrize(("count", "sizes"), [(16, (16, 8)), (63, (32, 16)), (64, (64, 32)), (2, (2, 2))])
def test_batches_are_no_larger_than_the_data(count: int, sizes: tuple[int, int]) -> None:
    found = Settings().for_samples(count)
    assert (found.batch_size, found.micro_batch) == sizes
    assert Settings.model_validate(found.model_dump()) == found
    assert Settings(batch_size=128, processes=1).for_samples(count).batch_size == 128


def test_by_default_samples_are_unrolled_over_windows(cell: Path) -> None:
    config = config_of(cell, {"x": x_NF()}, "model.constants={sr:1}", f"data.window={W}")
    assert load_splits(config.data)["train"].source.unroll == W


@pytest.mark.parametrize(("window", "length"), [("110", 11), ("null", 16), ("330", 15), ("20", 20)])
def test_parts_of_long_windows_stay_together(cell: Path, window: str, length: int) -> None:
    config = config_of(cell, {"x": x_NF()}, "model.constants={sr:1}", f"data.window={window}")
    assert load_splits(config.data)["train"].source.run_length == length


def test_few_samples_in_long_windows_are_said_to_have_the_states_of_the_given_network(cell: Path) -> None:
    config = config_of(cell, {"x": x_NF()[:31]}, "model.constants={sr:1}", "data.window=31")
    source = load_splits(config.data)["train"].source
    assert source.run_length == 1
    assert source.notes[0].startswith("data: SubNets are trained and scored with the states of the given network")
