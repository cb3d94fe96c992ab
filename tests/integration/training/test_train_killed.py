"""Ranks that are killed and checkpoints that are damaged: the result is that of a training that nothing disturbs."""

import shutil
from pathlib import Path

import psutil
import pytest
import torch

import tailor_ir
from tasks.base.errors import UserError
from tasks.base.progress import Silent
from tasks.data import DataSettings
from tasks.training import compile as compile_stage
from tasks.training import finetune
from tasks.training.finetune.checkpoint import finished_steps
from tests.support.damage import flip_late
from tests.support.finetune.listener import Listener
from tests.support.finetune.processes import ranks_of
from tests.support.finetune.short_training import STEPS, as_many_cores, assert_same, losses, train
from tests.support.finetune.small_training import MODEL

KILLED_AT = (STEPS // 3, 2 * STEPS // 3)


class Killer(Silent):
    """Kills rank 1 at each of some steps."""

    def __init__(self, *steps: int) -> None:
        self.left = list(steps)
        self.steps: list[int] = []

    def metrics(self, values: dict[str, float], step: int) -> None:
        self.steps.append(step)
        if self.left and step >= self.left[0]:
            self.left.pop(0)
            ranks_of(psutil.Process())[1].kill()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """As `undisturbed`, but a rank was killed twice: torchrun started it again once; the steps that were told."""
    folder, killer = tmp_path_factory.mktemp("killed"), Killer(*KILLED_AT)
    with pytest.raises(UserError, match="rank 1 was killed by SIGKILL"):
        train(folder, killer, processes=2, average=0.9, restarts=1)
    assert not killer.left
    return folder, killer.steps


@pytest.mark.long
def test_after_ranks_were_killed_the_result_is_the_same_to_the_last_bit(
    undisturbed: Path, killed: tuple[Path, list[int]], tmp_path: Path
) -> None:
    """Started again by torchrun, and by the same command."""
    folder, told = Path(shutil.copytree(killed[0], tmp_path / "run")), killed[1]
    done = finished_steps(folder / "checkpoint.safetensors")
    assert KILLED_AT[1] - 1 <= done < STEPS
    assert told == list(range(1, len(told) + 1))
    listener = Listener()
    train(folder, listener, processes=2, average=0.9)
    assert listener.steps == list(range(done + 1, STEPS + 1))
    assert_same(folder, undisturbed)
    assert losses(folder) == losses(undisturbed)


@pytest.mark.long
def test_a_damaged_checkpoint_is_trained_again_to_the_same_result(
    undisturbed: Path, killed: tuple[Path, list[int]], tmp_path: Path
) -> None:
    folder, listener = Path(shutil.copytree(killed[0], tmp_path / "run")), Listener()
    flip_late(folder / "checkpoint.safetensors")
    train(folder, listener, processes=2, average=0.9)
    place = tmp_path / "run.damaged-1" / "checkpoint.safetensors"
    assert listener.lines[0] == (
        f"training the base network: the checkpoint is damaged: quarantined as '{place}'; "
        "training starts from the beginning"
    )
    assert_same(folder, undisturbed)
    assert losses(folder) == losses(undisturbed)


@pytest.mark.long
def test_a_supernet_whose_rank_is_killed_is_the_same_to_the_last_bit(undisturbed: Path, tmp_path: Path) -> None:
    """Random SubNets of a space that opens in phases, a teacher of its own, and mixed images are all those of the step."""
    data = DataSettings(kind="digits")
    compiled, steps = tmp_path / "compiled", 6
    compile_stage.run(
        compile_stage.Settings(), MODEL, data, undisturbed / "weights.safetensors", None, compiled, Silent()
    )
    options = finetune.Settings.model_validate(
        {"epochs": 1, "batch_size": 192, "micro_batch": 96, "processes": 2, "device": "cpu", "checkpoint_every_s": 0}
        | {
            "restarts": 1,
            "strategy": "progressive",
            "teacher": "base",
            "random_subnets": 1,
            "mixing": {"mixup_alpha": 0.2, "cutmix_alpha": 1.0},
        }
    )

    def tuned(name: str, progress: Silent) -> Path:
        (tmp_path / name).mkdir(exist_ok=True)
        with as_many_cores(2):
            finetune.run(options, data, compiled / "supernet", tmp_path / name, progress)
        return tmp_path / name

    killer = Killer(steps // 2)
    found, expected = tuned("run", killer), tuned("expected", Silent())
    assert not killer.left
    assert losses(found) == losses(expected)
    assert sorted(losses(found)) == list(range(1, steps + 1))
    tensors, wanted = (tailor_ir.load(folder / "supernet").elastic.tensors() for folder in (found, expected))
    assert tensors.keys() == wanted.keys()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in tensors.items())
