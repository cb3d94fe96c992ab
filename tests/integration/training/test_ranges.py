"""Latency-range accuracy while training: SubNets in ranges of MACs, evaluated at the ends of epochs by all ranks."""

from pathlib import Path
from typing import Any

import pytest
import torch

import tailor_ir
from tasks.base.artifacts import read_lines
from tasks.base.progress import Silent
from tasks.base.schemas.results import RANGE_ACCURACIES_FILE, RANGES_FILE, WatchedSubNets
from tasks.data import DataSettings, load
from tasks.evaluation.models import ModelSettings
from tasks.evaluation.subnets import EvaluationData, accuracy
from tasks.training import compile as compile_stage
from tasks.training import finetune
from tasks.training.finetune import checkpoint, ranges
from tasks.training.finetune.job import Job, TrainingPhase
from tests.support.finetune.one_rank import train_here

DIGITS = DataSettings(kind="digits", augment=False)
STEPS = 18
IMAGES, RECALIBRATION = 96, 64
RTOL = 1e-6


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SuperNet with random weights."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("compiled")
    space: Any = {"resolution": (24, 32), "*.width_mult": "auto", "*.block": ("merged", "pruned_0.5")}
    compile_stage.run(
        compile_stage.Settings(), ModelSettings(name="test_resnet"), DIGITS, None, space, folder, Silent()
    )
    return folder / "supernet"


def settings(**changes: Any) -> finetune.Settings:
    common = {"epochs": 2, "batch_size": 64, "micro_batch": 32, "device": "cpu", "precision": "float64"}
    common |= {"strategy": "sandwich", "recalibration_images": 64}
    own = {"images": IMAGES, "recalibration_images": RECALIBRATION, "every_epochs": 1}
    return finetune.Settings.model_validate({**common, "ranges": own, **changes})


Trained = tuple[list[dict[str, Any]], Path, dict[int, dict[str, float]]]


@pytest.fixture(scope="module")
def trained(compiled: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """(history, folder, metrics by step) of two processes."""
    folder, told = tmp_path_factory.mktemp("finetuned"), {}

    class Metrics(Silent):
        def metrics(self, values: dict[str, float], step: int) -> None:
            told[step] = values

    finetune.run(settings(processes=2), DIGITS, compiled, folder, Metrics())
    return read_lines(folder / "history.jsonl"), folder, told


def test_watched_subnets_are_spread_over_equal_ranges_of_macs(compiled: Path) -> None:
    net = tailor_ir.load(compiled)
    found = ranges.choose(net, 16, seed=0)
    assert found == ranges.choose(net, 16, seed=0)
    assert found != ranges.choose(net, 16, seed=1)
    low, *inner, high = found.bounds_macs
    assert low <= net.macs(net.min_config)
    assert high == net.macs(net.max_config)
    assert [bound - low for bound in inner] == pytest.approx([(high - low) * part / 4 for part in (1, 2, 3)])
    assert len({one.digest for one in found.subnets}) == len(found.subnets)
    numbers = [one.range for one in found.subnets]
    assert set(numbers) == {0, 1, 2, 3}
    assert max(map(numbers.count, numbers)) == 4
    for one in found.subnets:
        assert one.macs == net.macs(dict(one.config))
        assert found.bounds_macs[one.range] <= one.macs <= found.bounds_macs[one.range + 1]


@pytest.mark.long
def test_the_history_has_mean_accuracies_at_the_end_of_each_epoch(trained: Trained) -> None:
    history, folder, told = trained
    watched = WatchedSubNets.read(folder / RANGES_FILE)
    lines = read_lines(folder / RANGE_ACCURACIES_FILE)
    assert [line["step"] for line in lines] == [STEPS, 2 * STEPS]
    assert [line["step"] for line in history if "accuracy_range_1" in line] == [STEPS, 2 * STEPS]
    for line in lines:
        assert line["total"] == IMAGES
        for number in range(4):
            own = [
                count / IMAGES
                for one, count in zip(watched.subnets, line["correct"], strict=True)
                if one.range == number
            ]
            name = f"accuracy_range_{number + 1}"
            assert history[line["step"] - 1][name] == pytest.approx(sum(own) / len(own))
            assert told[line["step"]][name] == history[line["step"] - 1][name]


@pytest.mark.long
def test_accuracies_are_those_of_the_evaluation(trained: Trained, compiled: Path) -> None:
    """In the end, on the weights of the last step."""
    folder = trained[1]
    net = tailor_ir.load(folder / "supernet")
    data = EvaluationData(
        load(DIGITS, "validation"),
        load(DIGITS, "train"),
        batch_size=32,
        limit=IMAGES,
        recalibration_images=RECALIBRATION,
    )
    watched, last = WatchedSubNets.read(folder / RANGES_FILE), read_lines(folder / RANGE_ACCURACIES_FILE)[-1]
    found = [accuracy(net, dict(one.config), data).correct for one in watched.subnets]
    assert found == pytest.approx(last["correct"], abs=2)  # the weights were rounded to float32


def one_process(compiled: Path, folder: Path) -> Job:
    used = settings(processes=1, checkpoint_every_s=0)
    folder.mkdir()
    job = Job(
        folder=folder, data=DIGITS, finetune=used, supernet=compiled, steps_per_epoch=STEPS, total_steps=2 * STEPS
    )
    ranges.prepare(job, tailor_ir.load(compiled))
    return job


@pytest.mark.long
def test_one_process_finds_what_two_find_also_when_it_was_killed(
    trained: Trained, compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after an evaluation, and before the checkpoint that has its step."""
    job = one_process(compiled, tmp_path / "run")
    real = checkpoint.save

    def save(path: Path, module: Any, optimiser: Any, step: int, *more: Any) -> None:
        if step == STEPS:
            raise InterruptedError
        real(path, module, optimiser, step, *more)

    monkeypatch.setattr(checkpoint, "save", save)
    with pytest.raises(InterruptedError):
        train_here(job)
    monkeypatch.setattr(checkpoint, "save", real)
    assert checkpoint.finished_steps(job.checkpoint) == STEPS - 1
    history = train_here(job)
    assert [line["loss"] for line in history] == pytest.approx([line["loss"] for line in trained[0]], rel=RTOL)
    one, two = (read_lines(folder / RANGE_ACCURACIES_FILE) for folder in (job.folder, trained[1]))
    assert one == two


@pytest.mark.long
def test_the_training_does_not_depend_on_the_evaluations(trained: Trained, compiled: Path, tmp_path: Path) -> None:
    used = settings(processes=1, ranges={"subnets": 0})
    job = Job(
        folder=tmp_path / "run",
        data=DIGITS,
        finetune=used,
        supernet=compiled,
        steps_per_epoch=STEPS,
        total_steps=STEPS + 2,
    )
    history = train_here(job)
    expected = [line["loss"] for line in trained[0][: len(history)]]
    assert [line["loss"] for line in history] == pytest.approx(expected, rel=RTOL)


def test_evaluations_are_as_frequent_as_they_are_cheap() -> None:
    """Sixteen SubNets on 384 images each take as long as about one epoch of a thousand images."""

    def every(strategy: Any, steps_per_epoch: int, epochs: int, **changes: Any) -> int | None:
        phase = TrainingPhase(strategy, 0, steps_per_epoch * epochs)
        used = finetune.Settings.model_validate({"strategy": strategy, **changes})
        return ranges.period(used, phase, steps_per_epoch)

    assert every("sandwich", 18, 8) == 6
    assert every("sandwich", 18, 4) is None
    assert every("sandwich", 1000, 4) == 1
    assert every("tune", 112, 4) == 3
    assert every("sandwich", 18, 4, ranges={"every_epochs": 2}) == 2
    assert every("sandwich", 1000, 4, ranges={"subnets": 0}) is None
    assert ranges.period(finetune.Settings(), TrainingPhase(None, 0, 10_000), 1000) is None


def test_other_subnets_begin_their_lines_anew(compiled: Path, tmp_path: Path) -> None:
    job = one_process(compiled, tmp_path / "run")
    lines = job.folder / RANGE_ACCURACIES_FILE
    lines.write_text("")
    net = tailor_ir.load(compiled)
    ranges.prepare(job, net)
    assert lines.exists()
    other = settings(processes=1, ranges={"subnets": 8, "every_epochs": 1})
    ranges.prepare(job.model_copy(update={"finetune": other}), net)
    assert not lines.exists()
    assert len(WatchedSubNets.read(job.folder / RANGES_FILE).subnets) == 8
