"""Fine-tuning of a real SuperNet: same curve for 1 and 2 processes, statistics stored, accuracies reported."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tailor_ir
from tasks.base.artifacts import read_lines
from tasks.base.progress import Silent
from tasks.base.schemas.stored import StageResult
from tasks.data import DataSettings, load
from tasks.evaluation.subnets import EvaluationData, accuracies, accuracy
from tasks.training import compile as compile_stage
from tasks.training import finetune
from tasks.training.finetune.job import Job
from tasks.training.finetune.networks.supernet import compound, progressive, sample_roles
from tests.support.finetune.one_rank import train_here
from tests.support.finetune.small_training import MODEL

DIGITS = DataSettings(kind="digits")

Trained = tuple[list[dict[str, Any]], StageResult, Path]
STEPS = 18
MIXED_STEPS = 8
RTOL = 1e-6
"""In float64, as for plain networks."""


@pytest.fixture(scope="module")
def compiled(baseline: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The SuperNet of the trained small network."""
    folder = tmp_path_factory.mktemp("compiled")
    counts = compile_stage.run(
        compile_stage.Settings(), MODEL, DIGITS, baseline[2] / "weights.safetensors", None, folder, Silent()
    )
    assert counts["distinct"] <= counts["codes"]
    assert counts["modifications"] > counts["variables"] > 5
    return folder / "supernet"


def settings(**changes: Any) -> finetune.Settings:
    common = {"epochs": 1, "batch_size": 64, "micro_batch": 32, "device": "cpu", "learning_rate": 5e-4}
    common["strategy"] = "sandwich"
    return finetune.Settings.model_validate({**common, "recalibration_images": 256, **changes})


def alone(compiled: Path, folder: Path, steps: int, **changes: Any) -> list[dict[str, Any]]:
    """The history of one rank in this process."""
    used = settings(processes=1, **changes)
    data = DIGITS
    job = Job(folder=folder, data=data, finetune=used, supernet=compiled, steps_per_epoch=STEPS, total_steps=steps)
    return train_here(job)


@pytest.fixture(scope="module")
def trained(compiled: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """(history, result, folder) of two processes."""
    folder = tmp_path_factory.mktemp("finetuned")
    used = settings(processes=2, precision="float64", strategy="compound")
    result = finetune.run(used, DIGITS, compiled, folder, Silent())
    return read_lines(folder / "history.jsonl"), result, folder


@pytest.fixture(scope="module")
def data() -> EvaluationData:
    return EvaluationData(load(DIGITS, "test"), load(DIGITS, "train"), recalibration_images=256)


@pytest.mark.long
def test_two_processes_give_the_loss_curves_of_one(trained: Trained, compiled: Path, tmp_path: Path) -> None:
    one = alone(compiled, tmp_path, STEPS, precision="float64", strategy="compound")
    assert len(one) == STEPS
    for key in ("loss", "loss_largest", "loss_smallest", "loss_random"):
        assert [line[key] for line in trained[0]] == pytest.approx([line[key] for line in one], rel=RTOL), key


def test_all_subnets_learn_and_the_result_tells_accuracies(
    trained: Trained, compiled: Path, data: EvaluationData
) -> None:
    history, result, folder = trained
    assert history[-1]["loss_smallest"] < history[0]["loss_smallest"]
    net = tailor_ir.load(folder / "supernet")
    assert accuracy(net, net.max_config, data).share == pytest.approx(result["largest_test_accuracy"], abs=0.005)
    before = tailor_ir.load(compiled)
    assert accuracy(net, net.min_config, data).loss < accuracy(before, before.min_config, data).loss
    assert not (folder / "checkpoint.safetensors").exists()


def test_stored_statistics_are_those_of_the_largest_subnet(trained: Trained, data: EvaluationData) -> None:
    net = tailor_ir.load(trained[2] / "supernet")
    own = net.recalibrate(net.max_config, data.calibration(net.input_size(net.max_config)))
    assert own.keys() == set(net.structure.graph.statistics)
    for name, value in own.items():
        torch.testing.assert_close(net.elastic.tensor(name), value, rtol=1e-4, atol=1e-5)


def test_evaluation_leaves_the_stored_statistics_alone_and_goes_on_where_it_stopped(
    trained: Trained, data: EvaluationData, tmp_path: Path
) -> None:
    net = tailor_ir.load(trained[2] / "supernet")
    before = {name: tensor.clone() for name, tensor in net.elastic.tensors().items()}
    rng = np.random.default_rng(0)
    configs = [net.max_config, net.min_config, net.space.sample(rng), net.max_config]
    file = tmp_path / "accuracy.jsonl"
    first = accuracies(net, configs[:2], data, file, Silent())
    with file.open("a") as stream:
        stream.write('{"digest": "torn')
    again = accuracies(net, configs, data, file, Silent())
    assert again[:2] == first
    assert again[3] == first[0]
    assert {line["digest"] for line in read_lines(file)} == {net.space.digest(config) for config in configs}
    assert all(found.total == 300 and 0 <= found.correct <= 300 for found in again)
    for name, tensor in net.elastic.tensors().items():
        assert torch.equal(tensor, before[name]), name


@pytest.mark.long
def test_mixed_precision_trains_subnets_whose_last_images_are_one_pixel(
    trained: Trained, compiled: Path, tmp_path: Path
) -> None:
    """Their gradients are numbers, and so all weights; the first losses are those of full precision."""
    mixed = alone(compiled, tmp_path, MIXED_STEPS, precision="bfloat16", random_subnets=0)
    assert len(mixed) == MIXED_STEPS
    for key in ("loss_largest", "loss_smallest"):
        exact = trained[0][0][key]
        assert mixed[0][key] != exact
        assert mixed[0][key] == pytest.approx(exact, rel=0.05)


def test_compound_sampling_couples_the_variables_of_a_stage(compiled: Path) -> None:
    space = tailor_ir.load(compiled).space
    rng = np.random.default_rng(0)
    configs = [compound(space, rng) for _ in range(40)]
    for config in configs:
        for stage in ("stage.1", "stage.2", "stage.3", "stage.4"):
            own = [v for v in space.variables if v.name.startswith(stage)]
            same_rank = [{v.name: v.choices[round(rank * (len(v.choices) - 1))] for v in own} for rank in (0, 0.5, 1)]
            assert any(space.digest({**config, **sizes}) == space.digest(config) for sizes in same_rank)
    assert len({space.digest(config) for config in configs}) > 20


@pytest.mark.parametrize(
    ("strategy", "names"),
    [
        ("sandwich", ["largest", "smallest", "random", "random"]),
        ("compound", ["largest", "smallest", "random", "random"]),
        ("random", ["random", "random"]),
        ("progressive", ["random", "random"]),
    ],
)
def test_roles_depend_on_the_seed_and_the_step_only(compiled: Path, strategy: Any, names: list[str]) -> None:
    net = tailor_ir.load(compiled)
    settings = finetune.Settings(random_subnets=2)
    roles = sample_roles(net, strategy, settings, 7, 0.7)
    assert [role.name for role in roles] == names
    assert roles == sample_roles(tailor_ir.load(compiled), strategy, settings, 7, 0.7)
    assert roles != sample_roles(net, strategy, settings, 8, 0.8)
    in_place = strategy in ("sandwich", "compound")
    assert [role.distilled for role in roles] == [name != "largest" and in_place for name in names]
    taught = sample_roles(net, strategy, settings.model_copy(update={"teacher": "base"}), 7, 0.7)
    assert [role.config for role in taught] == [role.config for role in roles]
    assert all(role.distilled for role in taught)


def test_progressive_shrinking_opens_one_kind_of_variable_after_the_other(compiled: Path) -> None:
    space = tailor_ir.load(compiled).space
    rng = np.random.default_rng(0)
    opening: dict[int, set[str]] = {}
    for kind in {variable.kind for variable in space.variables}:
        if (phase := tailor_ir.KINDS[kind].phase) is not None:
            opening.setdefault(phase, set()).add(kind)
    phases = [opening[phase] for phase in sorted(opening)]

    def modified(done: float) -> list[tuple[str, bool, bool]]:
        """Kinds of variables that some SubNet has modified; whether at the smallest choice, and that of more than two."""
        return [
            (variable.kind, config[variable.name] == variable.choices[0], len(variable.choices) > 2)
            for config in (progressive(space, rng, done) for _ in range(100))
            for variable in space.variables
            if config.get(variable.name, variable.default) != variable.default
        ]

    assert len(phases) >= 2
    for number in range(len(phases)):
        first, second = (modified((number + half) / len(phases)) for half in (0.0, 0.5))
        opened = {"resolution"}.union(*phases[: number + 1])
        assert {kind for kind, _, _ in first + second} <= opened
        assert any(smallest for kind, smallest, _ in second if kind in phases[number])
        assert not any(smallest for kind, smallest, longer in first if kind in phases[number] and longer)
    assert {kind for kind, _, _ in modified(1.0)} == {variable.kind for variable in space.variables}
