"""Training of exits: jointly in one pass, part after part, and heads alone; what is constant stays so, bit by bit."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors import safe_open

import tailor_ir
from tailor_ir import ExitParts, SuperNet
from tasks.base.artifacts import read_lines
from tasks.base.errors import UserError
from tasks.base.progress import Silent
from tasks.data import DataSettings
from tasks.training import compile as compile_stage
from tasks.training import finetune
from tasks.training.finetune import checkpoint
from tasks.training.finetune.job import Job, TrainingPhase, phases_of
from tasks.training.finetune.networks.exits import BestExit, Course, ExitRunner, PartTraining, StageJudge, joint_roles
from tasks.training.finetune.settings import ExitTraining
from tests.support.finetune.listener import Listener
from tests.support.finetune.one_rank import killed_at, train_here
from tests.support.finetune.small_training import MODEL

DIGITS = DataSettings(kind="digits", augment=False)
EXITS = ("stage.1", "stage.3", "last")
STEPS = 9
RTOL = 1e-6
"""In float64, as for sizes."""
PHASES = ["joint", "staged", "heads"]
EPOCHS = 5
"""One for `joint`, one for each part, one for `heads`."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network with random weights and two exits."""
    folder = tmp_path_factory.mktemp("compiled")
    space = {"exits": EXITS[:-1]}
    compile_stage.run(compile_stage.Settings(exit_images=64), MODEL, DIGITS, None, space, folder, Silent())
    return folder / "supernet"


def settings(exits: dict[str, Any] | None = None, **changes: Any) -> finetune.Settings:
    common = {"epochs": 2, "batch_size": 128, "micro_batch": 64, "device": "cpu", "processes": 1, "warmup_epochs": 0.2}
    judged = {"images": 128, "recalibration_images": 64, **(exits or {})}
    return finetune.Settings.model_validate({**common, "recalibration_images": 64, "exits": judged, **changes})


def job_of(compiled: Path, folder: Path, used: finetune.Settings, steps: int | None = None) -> Job:
    total = STEPS * used.epochs if steps is None else steps
    common = {"data": DIGITS, "supernet": compiled, "steps_per_epoch": STEPS, "total_steps": total}
    return Job(folder=folder, finetune=used, exits=EXITS, **common)


def weights_of(compiled: Path, job: Job) -> SuperNet:
    """The SuperNet with the weights of a job's checkpoint."""
    net = tailor_ir.load(compiled)
    checkpoint.load_model(job.checkpoint, net.elastic)
    return net


def differing(one: SuperNet, other: SuperNet) -> set[str]:
    """Names of the stored tensors that are not the same to the last bit."""
    graph = one.structure.graph
    names = (*graph.parameters, *graph.statistics)
    return {name for name in names if not torch.equal(one.elastic.tensor(name), other.elastic.tensor(name))}


def parts_of(net: SuperNet) -> ExitParts:
    return ExitParts(net.elastic, net.max_config)


# -- curves ------------------------------------------------------------------------------------------------------------


def everything(**changes: Any) -> finetune.Settings:
    shares = {"phase_shares": [1, 3, 1], "epochs": EPOCHS, "precision": "float64", "ranges": {"subnets": 0}}
    return settings({"earlier": "improve"}, strategy=PHASES, **shares, **changes)


@pytest.fixture(scope="module")
def trained(compiled: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Path, Listener]:
    """(history, folder, what was told) of two processes that train exits in all ways, one after the other."""
    folder, listener = tmp_path_factory.mktemp("finetuned"), Listener()
    finetune.run(everything(processes=2), DIGITS, compiled, folder, listener)
    return read_lines(folder / "history.jsonl"), folder, listener


@pytest.mark.long
def test_two_processes_give_the_loss_curves_of_one(compiled: Path, trained: Any, tmp_path: Path) -> None:
    one = train_here(job_of(compiled, tmp_path / "one", everything()))
    assert [line["loss"] for line in trained[0]] == pytest.approx([line["loss"] for line in one], rel=RTOL)
    for line, other in zip(trained[0], one, strict=True):
        assert {key: share for key, share in line.items() if key.startswith("accuracy")} == {
            key: share for key, share in other.items() if key.startswith("accuracy")
        }


@pytest.mark.long
def test_the_history_has_each_exits_loss_and_accuracy(trained: Any) -> None:
    history = trained[0]
    assert [line["step"] for line in history] == list(range(1, STEPS * EPOCHS + 1))
    losses = [{key for key in line if key.startswith("loss_exit")} for line in history]
    of = [f"loss_exit_{name}" for name in EXITS]
    assert losses[0] == set(of)
    assert losses[STEPS] == {of[0]}
    assert losses[4 * STEPS] == set(of[:-1])
    judged = [{key for key in line if key.startswith("accuracy_exit")} for line in history]
    assert [bool(keys) for keys in judged] == [line["step"] % STEPS == 0 for line in history]
    assert judged[2 * STEPS - 1] == {"accuracy_exit_stage.1"}
    assert judged[3 * STEPS - 1] == {"accuracy_exit_stage.1", "accuracy_exit_stage.3"}
    for line in history[:STEPS]:
        assert line["loss_joint"] == pytest.approx(sum(line[key] for key in of) / 3, rel=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("stop", [STEPS // 2, 2 * STEPS, 3 * STEPS - 2])
def test_a_killed_training_goes_on_at_the_same_curve(compiled: Path, trained: Any, tmp_path: Path, stop: int) -> None:
    """Within a phase, between parts, within a part that improves the ones before."""
    job = job_of(compiled, tmp_path / "run", everything(checkpoint_every_s=0))
    killed_at(job, stop)
    again = train_here(job)
    assert [line["loss"] for line in again] == pytest.approx([line["loss"] for line in trained[0]], rel=RTOL)


def test_dropout_in_heads_is_of_training_alone_and_of_heads_alone(compiled: Path) -> None:
    net = tailor_ir.load(compiled)
    runner, everything = ExitRunner(net, dropout=0.5), range(len(EXITS))
    x = torch.randn(net.input_shape(net.max_config, 8))

    def answers(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        with torch.no_grad():
            return runner(x, net.max_config, everything, 0)

    net.elastic.train()
    *heads, last = zip(answers(0), answers(1), strict=True)
    assert all(not torch.allclose(first, second) for first, second in heads)
    assert torch.equal(*last)
    net.elastic.eval()
    assert all(torch.equal(first, second) for first, second in zip(answers(0), answers(1), strict=True))


# -- joint -------------------------------------------------------------------------------------------------------------


def test_all_exits_are_trained_in_one_pass(compiled: Path, tmp_path: Path) -> None:
    passes = []

    class Counted(ExitRunner):
        def forward(self, *given: Any) -> list[torch.Tensor]:
            passes.append(len(given[2]))
            return super().forward(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.training.finetune.networks.exits.ExitRunner", Counted)
        job = job_of(compiled, tmp_path / "run", settings(strategy="joint"), steps=3)
        train_here(job)
    assert passes == [len(EXITS)] * 3 * 2
    assert {name for part in parts_of(tailor_ir.load(compiled)).parts for name in part.parameters} <= differing(
        tailor_ir.load(compiled), weights_of(compiled, job)
    )


def test_the_most_accurate_exit_teaches_wherever_it_stands() -> None:
    class Meter:
        found: Sequence[float] = ()

        def measure(self, data: Any, exits: Sequence[int], move: Any) -> list[float]:
            return list(self.found)

    meter, data = Meter(), cast(Any, None)
    judge = BestExit(cast(Any, meter), EXITS, TrainingPhase("joint", 0, STEPS), STEPS)
    for meter.found, best in (((0.2, 0.9, 0.8), 1), ((0.9, 0.9, 0.9), 2), ((0.5, 0.1, 0.2), 0)):
        judge.begin(data, lambda: None)
        assert judge.best == best


def test_the_best_exit_learns_from_labels_and_teaches_the_others(compiled: Path, tmp_path: Path) -> None:
    """Its first loss is the cross-entropy with and without distillation; those of the others are not."""
    first = {}
    for share in (0.0, 1.0):
        used = settings(strategy="joint", distillation=share)
        first[share] = train_here(job_of(compiled, tmp_path / str(share), used, steps=1))[0]
    same = {
        name
        for name in EXITS
        if first[0.0][f"loss_exit_{name}"] == pytest.approx(first[1.0][f"loss_exit_{name}"], abs=1e-7)
    }
    assert len(same) == 1


def test_exits_have_weights_in_the_loss(compiled: Path, tmp_path: Path) -> None:
    used = settings({"weights": [0, 1, 3]}, strategy="joint")
    line = train_here(job_of(compiled, tmp_path / "run", used, steps=1))[0]
    wanted = line["loss_exit_stage.3"] / 4 + 3 * line["loss_exit_last"] / 4
    assert line["loss"] == pytest.approx(wanted, rel=1e-6)


@pytest.mark.long
def test_sizes_are_those_of_the_sandwich_rule_up_to_the_last_exit(tmp_path: Path) -> None:
    space = {"exits": EXITS[:-1], "*.width_mult": (0.5, 1.0)}
    compile_stage.run(compile_stage.Settings(exit_images=0), MODEL, DIGITS, None, space, tmp_path, Silent())
    net = tailor_ir.load(tmp_path / "supernet")
    roles = joint_roles(net, settings(strategy="joint", random_subnets=2), 0, (("exit_last", 1.0),))
    assert [role.name for role in roles] == ["largest", "smallest", "random", "random"]
    assert {role.config["exit"] for role in roles} == {"last"}
    widths = [variable.name for variable in net.space.variables if variable.kind == "width_mult"]
    assert all(roles[1].config[name] == 0.5 for name in widths)
    job = job_of(tmp_path / "supernet", tmp_path / "run", settings(strategy="joint", random_subnets=2), steps=2)
    line = train_here(job)[-1]
    assert {"loss_largest", "loss_smallest", "loss_random", "loss_exit_stage.1"} <= line.keys()


# -- staged ------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_frozen_parts_stay_as_their_own_stage_left_them(compiled: Path, tmp_path: Path) -> None:
    used = settings({"patience": None}, strategy="staged", epochs=9, learning_rate=5e-3)
    jobs = [job_of(compiled, tmp_path / str(number), used, steps=3 * number * STEPS) for number in (1, 2)]
    for job in jobs:
        train_here(job)
    nets = [tailor_ir.load(compiled), *(weights_of(compiled, job) for job in jobs)]
    first, second, third = parts_of(nets[0]).parts
    assert set(first.parameters) <= differing(nets[0], nets[1])
    own = {*second.parameters, *second.statistics}
    assert differing(nets[1], nets[2]) <= own
    assert set(second.parameters) <= differing(nets[1], nets[2])
    assert not differing(nets[0], nets[2]).intersection(third.parameters)
    with safe_open(jobs[1].checkpoint, framework="pt") as file:
        moments = {name.split(".")[1] for name in list(file.keys()) if name.startswith("optimiser.")}
    assert len(moments) == len(second.parameters)


@pytest.mark.long
def test_a_part_that_is_good_enough_ends_its_stage(compiled: Path, tmp_path: Path) -> None:
    job = job_of(compiled, tmp_path / "run", settings({"target": [0.01]}, strategy="staged", epochs=6))
    steps = [line["step"] for line in train_here(job)]
    assert steps == [at + step for at in (0, 2 * STEPS, 4 * STEPS) for step in range(1, STEPS + 1)]
    assert checkpoint.finished_steps(job.checkpoint) == 6 * STEPS


@pytest.mark.long
def test_steps_that_were_left_out_count_as_done_on_the_bar(compiled: Path, tmp_path: Path) -> None:
    listener = Listener()
    used = settings({"target": [0.01]}, strategy="staged", epochs=6, ranges={"subnets": 0})
    result = finetune.run(used, DIGITS, compiled, tmp_path, listener)
    assert result["steps"] == 3 * STEPS


class Scripted:
    """A meter whose measurements are given; the first exit, and the part's own."""

    def __init__(self, *found: tuple[float, float]) -> None:
        self.left = list(found)

    def measure(self, data: Any, exits: Sequence[int], move: Any) -> list[float]:
        return list(self.left.pop(0))


def stage_judge(net: SuperNet, *found: tuple[float, float]) -> tuple[StageJudge, Course]:
    course = Course((0, 1), earlier=1)
    course.restrict(net)
    phase = TrainingPhase("staged", 0, 10 * STEPS, part=1)
    meter: Any = Scripted(*found)
    judge = StageJudge(net, meter, course, ExitTraining(earlier="improve"), EXITS[:2], phase, STEPS)
    data: Any = object()  # the meter does not look at images
    judge.begin(data, lambda: None)
    return judge, course


def shake(net: SuperNet) -> None:
    """Change every tensor that is trained, and all statistics."""
    with torch.no_grad():
        for name in (*net.structure.graph.parameters, *net.structure.graph.statistics):
            tensor = net.elastic.tensor(name)
            if tensor.requires_grad or name in net.structure.graph.statistics:
                tensor.add_(0.01 * torch.randn_like(tensor))


def test_weights_go_back_bit_by_bit_where_an_earlier_exit_gets_worse(compiled: Path) -> None:
    net = tailor_ir.load(compiled)
    judge, course = stage_judge(net, (0.8, 0.3), (0.8, 0.5), (0.79, 0.9), (0.8, 0.6))
    shake(net)
    assert not judge.judge(STEPS, lambda: None).changed
    good = net.elastic.tensors()
    good = {name: tensor.clone() for name, tensor in good.items()}
    shake(net)
    verdict = judge.judge(2 * STEPS, lambda: None)
    assert verdict.changed
    assert not verdict.ended
    reached = parts_of(net).parts[:2]
    kept = {name for part in reached for name in (*part.parameters, *part.statistics)}
    assert all(torch.equal(good[name], net.elastic.tensor(name)) for name in kept)
    assert course == Course((1,), 1)
    own = {name for name in net.structure.graph.parameters if net.elastic.tensor(name).requires_grad}
    assert own == set(reached[1].parameters)
    assert not judge.judge(3 * STEPS, lambda: None).changed
    assert judge.state() == {"floors": (), "best": 0.6, "waited": 0, "frozen": True}


def test_a_stage_ends_with_its_best_weights(compiled: Path) -> None:
    net = tailor_ir.load(compiled)
    judge, _ = stage_judge(net, (0.8, 0.3), (0.8, 0.5), (0.9, 0.4))
    shake(net)
    judge.judge(STEPS, lambda: None)
    best = {name: tensor.clone() for name, tensor in judge.kept.items()}
    shake(net)
    assert judge.judge(10 * STEPS, lambda: None).ended
    assert all(torch.equal(tensor, net.elastic.tensor(name)) for name, tensor in best.items())


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=12), st.integers(1, 4))
def test_the_kept_weights_are_the_best_that_no_earlier_exit_has_paid_for(
    found: list[tuple[float, float]], patience: int
) -> None:
    stage = PartTraining(floors=(0.5,), best=0.3)
    good = [0.3]
    row = 0
    for earlier, own in found:
        before = stage
        stage, worse, better = stage.after((earlier, own))
        assert worse == (earlier < 0.5)
        if not worse:
            good.append(own)
        assert stage.best == max(good)
        assert better == (stage.best > before.best)
        row = 0 if better else row + 1
        assert stage.is_over(None, patience) == (row >= patience)


def test_a_stage_is_a_phase_with_a_share_of_the_epochs() -> None:
    used = settings({"shares": [1, 1, 2]}, strategy=["joint", "staged"], epochs=10, phase_shares=[1, 4])
    phases = phases_of(used, used.epochs, 10, 100, 3)
    assert [(one.strategy, one.part, one.first_step, one.last_step) for one in phases] == [
        ("joint", None, 0, 20),
        ("staged", 0, 20, 40),
        ("staged", 1, 40, 60),
        ("staged", 2, 60, 100),
    ]


# -- heads -------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_heads_learn_and_the_network_stays_as_it_is(compiled: Path, tmp_path: Path) -> None:
    used = settings(strategy="heads", epochs=4, learning_rate=0.01, ranges={"subnets": 0})
    finetune.run(used, DIGITS, compiled, tmp_path, Silent())
    before, after = tailor_ir.load(compiled), tailor_ir.load(tmp_path / "supernet")
    graph = before.structure.graph
    original = graph.original()
    changed = differing(before, after)
    assert not changed.intersection((*original.parameters, *original.statistics))
    assert changed == {*graph.parameters, *graph.statistics} - {*original.parameters, *original.statistics}
    curve = [line["loss"] for line in read_lines(tmp_path / "history.jsonl")]
    assert curve[-1] < curve[0]


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"strategy": "staged", "epochs": 2}, r"^finetune\.epochs=2: 2 of them for the 3 stages of staged, stage\.1, "),
        (
            {"strategy": "joint", "exits": {"weights": [1, 2]}},
            r"^finetune\.exits\.weights=\[1\.0, 2\.0\]: the space has the exits stage\.1, stage\.3, last; allowed: a n",
        ),
        (
            {"strategy": "staged", "epochs": 3, "exits": {"target": [0.5, 0.6]}},
            r"^finetune\.exits\.target=\[0\.5, 0\.6\]: .*allowed: a number for each, or one for all$",
        ),
        ({"strategy": "tune"}, r"^finetune\.strategy: tune trains alternatives to blocks, and the space has none"),
    ],
)
def test_settings_that_do_not_fit_the_exits_are_refused(
    changes: dict[str, Any], line: str, compiled: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=line):
        finetune.run(settings(**changes), DIGITS, compiled, tmp_path, Silent())


def test_exits_of_a_space_without_any_are_refused(tmp_path: Path) -> None:
    plain = {"resolution": (24, 32)}
    compile_stage.run(compile_stage.Settings(), MODEL, DIGITS, None, plain, tmp_path, Silent())
    with pytest.raises(
        UserError, match=r"finetune\.strategy: heads trains exits, and the space has none; ask for some"
    ):
        finetune.run(settings(strategy="heads"), DIGITS, tmp_path / "supernet", tmp_path, Silent())


def test_averaged_weights_of_stages_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"average=0\.9 with strategy=staged, .*; allowed: average=0"):
        settings(strategy="staged", epochs=4, average=0.9)
