"""Checkpoints hold everything a run needs to go on; settings refuse batches that cannot be split."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file
from torch import nn

from tasks.training.finetune import checkpoint
from tasks.training.finetune.launcher import fitting_processes
from tasks.training.finetune.loop import learning_rate, make_optimiser
from tasks.training.finetune.settings import Settings, TrainSettings
from tests.support.damage import DAMAGES, Damage, delete
from tests.support.finetune.listener import Listener


def tied_network(seed: int) -> nn.Module:
    """Two layers that share one weight, and BatchNorm buffers."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8))
    network[2].weight = network[0].weight
    return network


def train_step(network: nn.Module, optimiser: torch.optim.Optimizer, seed: int) -> float:
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(seed))
    loss = (network(x) - 1).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    return loss.item()


def convolutions(seed: int) -> nn.Module:
    """Weights in channels-last layout."""
    torch.manual_seed(seed)
    network = nn.Sequential(
        nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 6, 2), nn.ReLU(), nn.Conv2d(6, 4, 1), nn.Flatten(), nn.Linear(4, 8)
    )
    return network.to(memory_format=torch.channels_last)


@pytest.mark.parametrize("optimiser", ["adamw", "sgd"])
@pytest.mark.parametrize("make", [tied_network, convolutions])
def test_restored_run_goes_on_exactly(tmp_path: Path, optimiser: str, make: Callable[[int], nn.Module]) -> None:
    settings = TrainSettings.model_validate({"optimiser": optimiser})
    network = make(0)
    state = make_optimiser(network, settings)
    for seed in range(3):
        train_step(network, state, seed)
    file = tmp_path / "checkpoint.safetensors"
    assert checkpoint.finished_steps(file) == 0
    checkpoint.save(file, network, state, 3)
    assert checkpoint.finished_steps(file) == 3
    assert [path.name for path in tmp_path.iterdir()] == [file.name]

    restored = make(1)
    restored_state = make_optimiser(restored, settings)
    checkpoint.load_model(file, restored)
    checkpoint.load_optimiser(file, restored_state)
    for seed in range(3, 6):
        assert train_step(restored, restored_state, seed) == train_step(network, state, seed)
    for one, other in zip(restored.state_dict().values(), network.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def stored(folder: Path) -> Path:
    folder.mkdir()
    network = tied_network(0)
    state = make_optimiser(network, TrainSettings())
    train_step(network, state, 0)
    checkpoint.save(folder / "c.safetensors", network, state, 1)
    return folder / "c.safetensors"


def test_a_whole_checkpoint_is_gone_on_from_without_a_word(tmp_path: Path) -> None:
    listener, file = Listener(), stored(tmp_path / "key.partial")
    checkpoint.mend(file, "training", listener)
    assert listener.lines == []
    assert checkpoint.finished_steps(file) == 1


@pytest.mark.parametrize("damage", [damage for damage in DAMAGES if damage is not delete])
def test_a_damaged_checkpoint_is_set_aside_with_one_line(tmp_path: Path, damage: Damage) -> None:
    listener, file = Listener(), stored(tmp_path / "key.partial")
    damage(file)
    damaged = file.read_bytes()
    checkpoint.mend(file, "training", listener)
    place = tmp_path / "key.damaged-1" / file.name
    assert listener.lines == [
        f"training: the checkpoint is damaged: quarantined as '{place}'; training starts from the beginning"
    ]
    assert place.read_bytes() == damaged
    assert checkpoint.finished_steps(file) == 0


def test_tensors_of_something_else_are_no_checkpoint(tmp_path: Path) -> None:
    listener, file = Listener(), tmp_path / "c.safetensors"
    save_file({"model.weight": torch.zeros(3)}, file)
    checkpoint.mend(file, "training", listener)
    assert len(listener.lines) == 1
    assert not file.exists()


def test_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    network = tied_network(0)
    checkpoint.save(tmp_path / "c.safetensors", network, make_optimiser(network, TrainSettings()), 1)
    with pytest.raises(AssertionError, match="checkpoint and network differ"):
        checkpoint.load_model(tmp_path / "c.safetensors", nn.Linear(8, 8))


def test_learning_rate_warms_up_then_falls_to_zero() -> None:
    settings = TrainSettings(epochs=10, warmup_epochs=2, learning_rate=1.0)
    rates = [learning_rate(settings, step, 100, 10) for step in range(100)]
    assert rates[:20] == sorted(rates[:20])
    assert rates[20] == max(rates) == 1.0
    assert rates[20:] == sorted(rates[20:], reverse=True)
    assert rates[-1] < 0.001


def test_weight_decay_is_for_matrices_only() -> None:
    matrices, vectors = make_optimiser(tied_network(0), TrainSettings()).param_groups
    assert matrices["weight_decay"] > 0 == vectors["weight_decay"]
    assert {p.ndim for p in matrices["params"]} == {2}
    assert {p.ndim for p in vectors["params"]} == {1}


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_size": 48, "micro_batch": 32},
        {"batch_size": 64, "micro_batch": 32, "processes": 3},
        {"micro_batch": 1},
        {"epochs": 0},
        {"learning_rate": 0},
        {"strategy": "random", "random_subnets": 0},
        {"distillation": 1.5},
        {"momentum": 0.9},
        {"average": 1.0},
        {"precision": "float16"},
        {"restarts": -1},
        {"nodes": 0},
        {"learning_rate": float("inf")},
        {"strategy": "evolution"},
        {"teacher": "smallest"},
        {"divergence": "reverse"},
        {"mixing": {"mixup_alpha": -0.1}},
        {"mixing": {"cutmix_alpha": float("inf")}},
        {"mixing": {"probability": 1.1}},
        {"mixing": {"alpha": 1.0}},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Settings.model_validate(wrong)


def test_batch_that_does_not_split_says_what_would() -> None:
    with pytest.raises(ValidationError, match=r"3 processes in micro-batches of 32; allowed: multiples of 96"):
        TrainSettings(batch_size=64, micro_batch=32, processes=3)


@pytest.mark.parametrize(
    ("gpus", "changes", "processes"),
    [
        (0, {"processes": 4}, 4),
        (1, {"processes": 2}, 1),
        (8, {"processes": 4}, 4),
        (3, {"processes": 4}, 2),
        (1, {"processes": 2, "nodes": 2, "rendezvous": "host:1", "insecure": True}, 2),
    ],
)
def test_each_process_has_a_gpu_of_its_own(gpus: int, changes: dict[str, object], processes: int) -> None:
    settings = TrainSettings.model_validate({"batch_size": 128, "micro_batch": 32, **changes})
    assert fitting_processes(settings, gpus) == processes
    if settings.nodes == 1:
        TrainSettings.model_validate({**settings.model_dump(), "processes": processes})


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (
            {"nodes": 2, "batch_size": 128},
            r"nodes=2, rendezvous=None; allowed: rendezvous=HOST:PORT with several nodes",
        ),
        ({"rendezvous": "host:1"}, r"nodes=1, rendezvous=host:1; allowed: .* null with one"),
        (
            {"nodes": 2, "processes": 2, "micro_batch": 32, "batch_size": 96},
            r"4 processes in micro-batches of 32; allowed: multiples of 128",
        ),
        (
            {"nodes": 3, "least_nodes": 2, "restarts": 1, "processes": 2, "micro_batch": 32, "batch_size": 192},
            r"4 processes in micro-batches of 32; allowed: multiples of 128",
        ),
        ({"least_nodes": 2}, r"least_nodes=2 with nodes=1, restarts=0; allowed: at most as many as nodes"),
        (
            {"nodes": 2, "least_nodes": 1, "batch_size": 128},
            r"least_nodes=1 with nodes=2, restarts=0; allowed: .* and restarts=1 or more",
        ),
        *(
            (
                {"nodes": 2, "batch_size": 128, "rendezvous": place},
                r"allowed: an address of this machine alone, or insec",
            )
            for place in ("host:29400", "0.0.0.0:29400", "10.0.0.5:29400", "[fe80::1]:29400")
        ),
        ({"strategy": "progressive", "divergence": "alpha"}, r"without a teacher: .*; allowed: teacher=base, or div"),
        ({"strategy": "random", "random_subnets": 0}, r"strategy=random needs random_subnets of at least 1"),
        *(
            ({"nodes": 2, "batch_size": 128, "rendezvous": place}, r"rendezvous=.*; allowed: HOST:PORT of the first")
            for place in ("host", "host:", ":29400", "host:0", "host:65536", "-x:1", "a b:1", "[g::1]:1")
        ),
    ],
)
def test_settings_that_contradict_each_other_say_what_would_do(wrong: dict[str, object], line: str) -> None:
    with pytest.raises(ValidationError, match=line):
        Settings.model_validate(wrong)


@pytest.mark.parametrize("place", ["host:29400", "board-1.lan:1", "192.168.0.7:65535", "[fe80::1]:29400"])
def test_nodes_meet_at_a_name_or_an_address(place: str) -> None:
    assert Settings(nodes=2, batch_size=128, rendezvous=place, insecure=True).rendezvous == place


@pytest.mark.parametrize("place", ["127.0.0.1:29400", "localhost:1", "[::1]:29400"])
def test_nodes_of_one_machine_meet_without_further_words(place: str) -> None:
    assert not Settings(nodes=2, batch_size=128, rendezvous=place).insecure
