"""Training of alternatives: the network that they stand in stays as it is, bit by bit; they learn what it computes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import tailor_ir
from tailor_ir import SuperNet
from tailor_ir.subnets.elastic import Branches
from tasks.base.artifacts import read_lines
from tasks.base.errors import UserError
from tasks.base.progress import Silent
from tasks.base.schemas.stored import StageResult
from tasks.data import DataSettings, load
from tasks.evaluation.subnets import EvaluationData, accuracy
from tasks.training import compile as compile_stage
from tasks.training import finetune
from tasks.training.finetune import checkpoint
from tasks.training.finetune.job import REFINING, Job, phases_of, split_epochs
from tasks.training.finetune.networks.record import FrozenOriginal
from tasks.training.finetune.networks.supernet import draw_branches, sample_roles, with_alternatives
from tasks.training.finetune.numerics import distance
from tests.support.finetune.listener import Listener
from tests.support.finetune.one_rank import killed_at, train_here
from tests.support.finetune.small_training import MODEL

DIGITS = DataSettings(kind="digits", augment=False)
SPACE: Any = {"stage.4.width_mult": (0.5, 1.0), "*.block": ("merged", "pruned_0.5", "low_rank_0.5", "separable")}
STEPS = 18
RTOL = 1e-6
"""In float64, as for sizes."""

Trained = tuple[list[dict[str, Any]], StageResult, Path, Listener]


@pytest.fixture(scope="module")
def compiled(baseline: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The SuperNet of the trained small network, with alternatives and one elastic width; first weights from weights alone."""
    folder = tmp_path_factory.mktemp("compiled")
    weights = baseline[2] / "weights.safetensors"
    compile_stage.run(compile_stage.Settings(alternative_images=0), MODEL, DIGITS, weights, SPACE, folder, Silent())
    return folder / "supernet"


def settings(**changes: Any) -> finetune.Settings:
    common = {"epochs": 2, "batch_size": 64, "micro_batch": 32, "device": "cpu", "precision": "float64"}
    return finetune.Settings.model_validate({**common, "recalibration_images": 128, **changes})


@pytest.fixture(scope="module")
def trained(compiled: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """(history, result, folder, what was told) of two processes with the strategy that such a space has by default."""
    folder, listener = tmp_path_factory.mktemp("finetuned"), Listener()
    result = finetune.run(settings(processes=2, average=0.5), DIGITS, compiled, folder, listener)
    return read_lines(folder / "history.jsonl"), result, folder, listener


def originals(net: SuperNet) -> dict[str, torch.Tensor]:
    """Weights and statistics of the network as it was given."""
    graph = net.structure.graph.original()
    return {name: net.elastic.tensor(name).detach() for name in (*graph.parameters, *graph.statistics)}


def answers(net: SuperNet) -> torch.Tensor:
    """Of the largest SubNet."""
    net.elastic.activate(net.max_config)
    net.elastic.eval()
    with torch.no_grad():
        found: torch.Tensor = net.elastic(torch.randn(net.input_shape(net.max_config, 4), generator=generator()))
    return found


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.long
def test_the_largest_subnet_is_the_users_network_bit_by_bit(compiled: Path, trained: Trained) -> None:
    before, after = tailor_ir.load(compiled), tailor_ir.load(trained[2] / "supernet")
    kept = originals(before)
    assert {name for name, tensor in originals(after).items() if not torch.equal(tensor, kept[name])} == set()
    assert torch.equal(answers(before), answers(after))


@pytest.mark.long
def test_every_alternative_is_trained(compiled: Path, trained: Trained) -> None:
    before, after = tailor_ir.load(compiled), tailor_ir.load(trained[2] / "supernet")
    own = {name for branch in Branches(before.elastic).branches for name in branch.parameters}
    assert len(own) > 20
    same = {name for name in own if torch.equal(before.elastic.tensor(name), after.elastic.tensor(name))}
    assert same == set()


@pytest.mark.long
def test_phases_follow_each_other_and_the_choice_is_told(trained: Trained) -> None:
    history, result, _, listener = trained
    assert result["strategy"] == "branches,tune"
    assert [line["step"] for line in history] == list(range(1, 2 * STEPS + 1))
    assert all(("loss_branches" in line) == (line["step"] <= STEPS) for line in history)
    assert all(("loss_tune" in line) == (line["step"] > STEPS) for line in history)
    assert history[STEPS]["learning_rate"] == pytest.approx(REFINING * history[0]["learning_rate"])
    assert any("branches,tune: alternatives alone are trained" in line for line in listener.lines)
    assert any("width_mult: not trained" in line for line in listener.lines)


@pytest.mark.long
def test_subnets_with_alternatives_become_better(compiled: Path, trained: Trained) -> None:
    data = EvaluationData(load(DIGITS, "test"), load(DIGITS, "train"), recalibration_images=128)
    nets = [tailor_ir.load(compiled), tailor_ir.load(trained[2] / "supernet")]
    rng = np.random.default_rng(0)
    configs = [with_alternatives(nets[0].space, rng) for _ in range(6)]
    before, after = (np.mean([accuracy(net, config, data).loss for config in configs]) for net in nets)
    assert after < before


@pytest.mark.long
def test_stored_statistics_of_alternatives_are_those_of_the_trained_weights(compiled: Path, trained: Trained) -> None:
    """Those of the compiled network are those of other weights."""
    net, before = tailor_ir.load(trained[2] / "supernet"), tailor_ir.load(compiled)
    images = EvaluationData(load(DIGITS, "test"), load(DIGITS, "train"), recalibration_images=128)
    taken = net.recalibrate_alternatives(images.calibration((32, 32)))
    own = set(net.structure.graph.statistics) - set(net.structure.graph.original().statistics)
    assert taken.keys() == own
    for name, tensor in taken.items():
        torch.testing.assert_close(net.elastic.tensor(name), tensor, rtol=1e-4, atol=1e-5)
    off = [(before.elastic.tensor(name) - tensor).norm() / tensor.norm() for name, tensor in taken.items()]
    assert np.mean(off) > 0.05


@pytest.mark.long
def test_branches_come_closer_to_the_network(compiled: Path, tmp_path: Path) -> None:
    job = job_of(compiled, tmp_path / "run", learning_rate=2e-3)
    used = settings(processes=1, epochs=1, strategy="branches", learning_rate=2e-3, branches_per_step=50)
    job = job.model_copy(update={"finetune": used, "total_steps": STEPS})
    curve = [line["loss_branches"] for line in train_here(job)]
    assert curve[-1] < 0.7 * curve[0]


def job_of(compiled: Path, folder: Path, **changes: Any) -> Job:
    used = settings(processes=1, strategy="branches,tune", average=0.5, **changes)
    total = STEPS * used.epochs
    return Job(folder=folder, data=DIGITS, finetune=used, supernet=compiled, steps_per_epoch=STEPS, total_steps=total)


@pytest.mark.long
def test_two_processes_give_the_loss_curves_of_one(compiled: Path, trained: Trained, tmp_path: Path) -> None:
    one = train_here(job_of(compiled, tmp_path / "one"))
    assert [line["loss"] for line in trained[0]] == pytest.approx([line["loss"] for line in one], rel=RTOL)


@pytest.mark.long
@pytest.mark.parametrize("stop", [STEPS // 2, STEPS, STEPS + 5])
def test_a_killed_training_goes_on_at_the_same_curve(
    compiled: Path, trained: Trained, tmp_path: Path, stop: int
) -> None:
    """Within the first phase, between the phases, within the second one."""
    job = job_of(compiled, tmp_path / "run", checkpoint_every_s=0)

    killed_at(job, stop)
    again = train_here(job)
    assert [line["step"] for line in again] == list(range(1, 2 * STEPS + 1))
    assert [line["loss"] for line in again] == pytest.approx([line["loss"] for line in trained[0]], rel=RTOL)


@pytest.mark.long
def test_sizes_first_then_alternatives(compiled: Path, tmp_path: Path) -> None:
    """The first phase trains the network and none of its alternatives; the others leave the network as it then is."""
    used = settings(processes=1, epochs=3, strategy=["sandwich", "branches", "tune"], checkpoint_every_s=0)
    total = 3 * STEPS
    job = Job(folder=tmp_path, data=DIGITS, finetune=used, supernet=compiled, steps_per_epoch=STEPS, total_steps=total)
    killed_at(job, STEPS)
    before, sizes, all_ = (tailor_ir.load(compiled) for _ in range(3))
    checkpoint.load_model(job.checkpoint, sizes.elastic)
    history = train_here(job)
    checkpoint.load_model(job.checkpoint, all_.elastic)
    network = before.structure.graph.original().parameters
    assert any(not torch.equal(sizes.elastic.tensor(name), before.elastic.tensor(name)) for name in network)
    assert all(torch.equal(sizes.elastic.tensor(name), all_.elastic.tensor(name)) for name in network)
    own = {name for branch in Branches(before.elastic).branches for name in branch.parameters}
    assert all(torch.equal(sizes.elastic.tensor(name), before.elastic.tensor(name)) for name in own - set(network))
    names = [{key for key in line if key.startswith("loss_")} for line in history]
    assert names[0] == {"loss_largest", "loss_smallest", "loss_random"}
    assert names[STEPS] == {"loss_branches"}
    assert names[2 * STEPS] == {"loss_tune"}


@pytest.mark.long
def test_tune_goes_on_with_what_branches_has_trained_behind_sizes(compiled: Path, tmp_path: Path) -> None:
    """First weights are fitted once, behind the phase that trained the network; a rate near 0 then leaves weights alone."""
    phases: dict[str, Any] = {
        "strategy": "sandwich,branches,tune",
        "phase_rates": [1, 1, 1e-9],
        "weight_decay": 0,
        "checkpoint_every_s": 0,
    }
    used = settings(processes=1, epochs=3, **phases)
    job = job_of(compiled, tmp_path).model_copy(update={"finetune": used, "total_steps": 3 * STEPS})
    branched, tuned = (tailor_ir.load(compiled) for _ in range(2))
    killed_at(job, 2 * STEPS)
    checkpoint.load_model(job.checkpoint, branched.elastic)
    train_here(job)
    checkpoint.load_model(job.checkpoint, tuned.elastic)
    for branch in Branches(tuned.elastic).branches:
        for name in branch.parameters:
            torch.testing.assert_close(tuned.elastic.tensor(name), branched.elastic.tensor(name), rtol=1e-4, atol=1e-6)


@pytest.mark.long
def test_alternatives_are_fitted_to_the_network_that_an_earlier_phase_has_trained(compiled: Path) -> None:
    """A changed network moves away from its alternatives; the phase that freezes it begins close to it again."""
    net = tailor_ir.load(compiled)
    images = [x for x, _ in load(DIGITS, "train").batches(64)][:3]
    with torch.no_grad():
        for name in net.structure.graph.original().parameters:
            tensor = net.elastic.tensor(name)
            if tensor.ndim > 1:
                tensor.add_(0.5 * tensor.std() * torch.randn(tensor.shape, generator=generator()))
    net.set_statistics(net.recalibrate(net.max_config, images))

    def lost() -> float:
        branches = Branches(net.elastic)
        features = branches.features(images[0])
        with torch.no_grad(), net.elastic.evaluated():
            far = [distance(branches.run(one, features), features[one.exit]).item() for one in branches.branches]
        return float(np.median(far))

    before = lost()
    FrozenOriginal(net, 0, refit=False).begin(images)
    assert lost() == before
    FrozenOriginal(net, 0, refit=True).begin(images)
    assert lost() < 0.5 * before


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["sandwich", "compound", "random", "progressive"])
def test_subnets_of_a_phase_before_have_no_alternatives_and_all_sizes(compiled: Path, strategy: Any) -> None:
    net = tailor_ir.load(compiled)
    fixed = {one.name: one.default for one in net.space.variables if one.kind == "block"}
    used = settings(random_subnets=2)
    roles = [role for step in range(30) for role in sample_roles(net, strategy, used, step, 1.0, fixed=fixed)]
    for role in roles:
        assert role.config == net.space.canonical({**role.config, **fixed})
    sizes = [variable for variable in net.space.variables if variable.kind != "block"]
    for variable in sizes:
        assert {role.config.get(variable.name) for role in roles} >= set(variable.choices)


@pytest.mark.long
def test_alternatives_of_a_space_without_any_are_refused(compiled: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    compile_stage.run(
        compile_stage.Settings(alternative_images=0), MODEL, DIGITS, None, {"resolution": (24, 32)}, plain, Silent()
    )
    with pytest.raises(UserError, match=r"finetune\.strategy: tune trains alternatives to blocks, and the space has n"):
        finetune.run(settings(strategy="sandwich,tune"), DIGITS, plain / "supernet", tmp_path, Silent())


def test_auto_follows_the_space_and_the_epochs() -> None:
    assert settings().resolved({"block"}).strategies == ("branches", "tune")
    assert settings(epochs=1).resolved({"block"}).strategies == ("tune",)
    assert settings().resolved({"width_mult"}).strategies == ("sandwich",)
    assert settings(strategy="random").resolved({"block"}).strategies == ("random",)
    assert settings(epochs=3).resolved({"block", "exit"}).strategies == ("branches", "tune", "heads")
    assert settings(epochs=2).resolved({"block", "exit"}).strategies == ("tune", "heads")
    assert settings().resolved({"exit"}).strategies == ("joint",)
    assert settings().resolved({"exit", "depth"}).strategies == ("sandwich",)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"strategy": "branch"}, r"strategy=branch; allowed: auto, or one or several of sandwich, .*tune"),
        ({"strategy": ["auto", "tune"]}, r"strategy=auto,tune; allowed: auto, or"),
        ({"strategy": "sandwich,branches,tune"}, r"with epochs=2; allowed: an epoch or more for each"),
        (
            {"strategy": "branches,tune", "phase_shares": [1]},
            r"phase_shares=\[1\.0\] with strategy=branches,tune; allow",
        ),
        ({"phase_shares": [1, 2]}, r"with strategy=auto; allowed: a number for each"),
        (
            {"strategy": "branches,tune", "phase_rates": [1, 0.3, 1]},
            r"phase_rates=\[1\.0, 0\.3, 1\.0\] with strategy=branches,tune; allowed: a number for each",
        ),
        ({"strategy": "tune", "random_subnets": 0}, r"strategy=tune needs random_subnets"),
    ],
)
def test_a_strategy_that_cannot_be_is_refused(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ValidationError, match=line):
        settings(**changes)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=5), st.integers(0, 40))
def test_epochs_are_split_by_shares(shares: list[float], more: int) -> None:
    epochs = len(shares) + more
    found = split_epochs(epochs, shares)
    assert sum(found) == epochs
    assert min(found) >= 1
    for count, share in zip(found, shares, strict=True):
        assert count <= max(1, share / sum(shares) * epochs + 1)


def test_phases_cover_all_steps() -> None:
    used = settings(epochs=7, strategy="sandwich,branches,tune", phase_shares=[2, 1, 4])
    phases = phases_of(used, used.epochs, 10, 70)
    assert [(one.strategy, one.first_step, one.last_step) for one in phases] == [
        ("sandwich", 0, 20),
        ("branches", 20, 30),
        ("tune", 30, 70),
    ]
    assert [one.rate for one in phases] == [1, 1, REFINING]


def test_each_phase_has_its_own_peak_of_the_learning_rate() -> None:
    used = settings(epochs=4, strategy="branches,tune", phase_rates=[1, 0.25])
    assert [one.rate for one in phases_of(used, used.epochs, 10, 40)] == [1, 0.25]
    alone = settings(epochs=4, strategy="tune")
    assert [one.rate for one in phases_of(alone, alone.epochs, 10, 40)] == [1]


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=9), st.integers(1, 9), st.integers(0, 99))
def test_branches_are_drawn_evenly_over_the_blocks(exits: list[str], count: int, seed: int) -> None:
    drawn = draw_branches(exits, count, np.random.default_rng(seed))
    assert len(set(drawn)) == len(drawn) == min(count, len(exits))
    taken = {name: sum(exits[position] == name for position in drawn) for name in set(exits)}
    assert all(taken[name] >= min(exits.count(name), max(taken.values()) - 1) for name in taken)
    one_each = draw_branches(exits, None, np.random.default_rng(seed))
    assert sorted(exits[position] for position in one_each) == sorted(set(exits))


def test_every_branch_is_drawn_sooner_or_later() -> None:
    drawn = {
        one for seed in range(60) for one in draw_branches(["a", "a", "a", "b"], None, np.random.default_rng(seed))
    }
    assert drawn == {0, 1, 2, 3}


def test_the_distance_is_a_share_of_the_variance() -> None:
    wanted = torch.randn(4, 8, 5, 5, generator=generator())
    assert distance(wanted, wanted).item() == 0
    mean = wanted.mean().expand_as(wanted)
    assert distance(mean, wanted).item() == pytest.approx(1, rel=1e-5)
    assert distance(3 * mean, 3 * wanted).item() == pytest.approx(1, rel=1e-5)


@pytest.mark.long
def test_tuned_subnets_have_an_alternative(compiled: Path) -> None:
    space = tailor_ir.load(compiled).space
    rng = np.random.default_rng(0)
    blocks = {variable.name for variable in space.variables if variable.kind == "block"}
    for _ in range(50):
        config = with_alternatives(space, rng)
        assert any(config.get(name, "original") != "original" for name in blocks)


@pytest.mark.long
def test_labels_alone_tune_without_a_teacher(compiled: Path, tmp_path: Path) -> None:
    """The first loss is the cross-entropy of the labels, whatever the network answers; so it is where nothing is said."""
    first: dict[float | None, float] = {}
    for share in (0.0, None, 1.0):
        used = settings(processes=1, epochs=1, strategy="tune", distillation=share, random_subnets=2)
        folder = tmp_path / str(share)
        job = Job(folder=folder, data=DIGITS, finetune=used, supernet=compiled, steps_per_epoch=STEPS, total_steps=2)
        first[share] = train_here(job)[0]["loss"]
    assert first[None] == first[0.0]
    assert first[0.0] != pytest.approx(first[1.0], rel=1e-3)
