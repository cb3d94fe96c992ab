"""Trainings that go wrong, on real ranks: one clear line each, and nothing lost that was in a checkpoint."""

import io
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_model

import tailor_ir
from tasks import base, finetune
from tasks import compile as compile_stage
from tasks.artifacts import read_lines
from tasks.data import DataSettings
from tasks.data.samples import image_form
from tasks.errors import UserError
from tasks.finetune import launcher
from tasks.finetune.checkpoint import finished_steps
from tasks.finetune.job import Job
from tasks.models import create
from tasks.progress import Silent
from tasks.schemas.stored import StageResult
from tasks.shortage import is_out_of_memory
from tests.damage import flip_late
from tests.finetune.one_rank import train_here
from tests.finetune.small_training import MODEL
from tests.ports import free_port

STEPS = 18


def settings(**changes: Any) -> base.Settings:
    common = {
        "epochs": 1,
        "batch_size": 64,
        "micro_batch": 32,
        "optimiser": "sgd",
        "learning_rate": 0.05,
        "processes": 1,
    }
    return base.Settings.model_validate({**common, "device": "cpu", "checkpoint_every_s": 0, **changes})


@contextmanager
def as_many_cores(processes: int, first_core: int = 0) -> Iterator[None]:
    """As ranks, so that each has one thread, and results can be equal to the last bit."""
    allowed = os.sched_getaffinity(0)
    cores = sorted(allowed) * 2
    first_core %= len(allowed)
    os.sched_setaffinity(0, cores[first_core : first_core + processes])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def train(folder: Path, progress: Silent | None = None, first_core: int = 0, **changes: Any) -> StageResult:
    folder.mkdir(exist_ok=True)
    options = settings(**changes)
    with as_many_cores(options.processes, first_core):
        return base.run(options, MODEL, DataSettings(kind="digits"), folder, progress or Silent())


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "weights.safetensors")


def assert_same(folder: Path, expected: Path) -> None:
    """The same weights to the last bit, and nothing else left behind."""
    found, wanted = weights(folder), weights(expected)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in found.items())
    assert {file.name for file in folder.iterdir()} == {file.name for file in expected.iterdir()}


def losses(folder: Path) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in read_lines(folder / "history.jsonl")}


class Killer(Silent):
    """Kills rank 1 at each of some steps, the first one half-way unless others are given."""

    def __init__(self, *steps: int) -> None:
        self.left = list(steps or [STEPS // 2])
        self.steps: list[int] = []

    def metrics(self, values: dict[str, float], step: int) -> None:
        self.steps.append(step)
        if self.left and step >= self.left[0]:
            self.left.pop(0)
            for child in psutil.Process().children(recursive=True):
                if "tasks.finetune.worker" in child.cmdline() and child.environ().get("RANK") == "1":
                    child.kill()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks, with a moving average of the weights."""
    folder = tmp_path_factory.mktemp("undisturbed")
    train(folder, processes=2, average=0.9)
    return folder


class Listener(Silent):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.steps: list[int] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    def metrics(self, values: dict[str, float], step: int) -> None:
        self.steps.append(step)


KILLED_AT = (STEPS // 3, 2 * STEPS // 3)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """The same training, a rank of which was killed twice: torchrun started it again once; the steps that were told."""
    folder, killer = tmp_path_factory.mktemp("killed"), Killer(*KILLED_AT)
    with pytest.raises(UserError, match="rank 1 was killed by SIGKILL"):
        train(folder, killer, processes=2, average=0.9, restarts=1)
    assert not killer.left
    return folder, killer.steps


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


def test_a_damaged_checkpoint_is_trained_again_to_the_same_result(
    undisturbed: Path, killed: tuple[Path, list[int]], tmp_path: Path
) -> None:
    folder, listener = Path(shutil.copytree(killed[0], tmp_path / "run")), Listener()
    flip_late(folder / "checkpoint.safetensors")
    train(folder, listener, processes=2, average=0.9)
    place = tmp_path / "run.damaged-1" / "checkpoint.safetensors"
    assert listener.lines == [
        f"training the base network: the checkpoint is damaged: set aside as '{place}'; "
        "training starts from the beginning"
    ]
    assert_same(folder, undisturbed)
    assert losses(folder) == losses(undisturbed)


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


def alone(folder: Path, **changes: Any) -> dict[int, float]:
    """Losses of one rank in this process; its weights stay in the checkpoint."""
    folder.mkdir(exist_ok=True)
    data, initial = DataSettings(kind="digits"), folder / "initial.safetensors"
    module = create(MODEL, 10, image_form(data.channels, data.resolution))
    assert isinstance(module, torch.nn.Module)
    save_model(module, str(initial))
    used = settings(**changes)
    job = Job(
        folder=folder, data=data, train=used, model=MODEL, initial=initial, steps_per_epoch=STEPS, total_steps=STEPS
    )
    return {line["step"]: line["loss"] for line in train_here(job)}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, float]]:
    """One rank without an average of the weights, and its losses."""
    folder = tmp_path_factory.mktemp("plain")
    return folder, alone(folder)


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


class Stopper(Silent):
    """Interrupts the pipeline in the middle."""

    def metrics(self, values: dict[str, float], step: int) -> None:
        if step >= STEPS // 2:
            raise InterruptedError


def train_nodes(folders: list[Path], progress: list[Silent]) -> list[Exception]:
    """One rank on each of two nodes; what they raised."""
    port = free_port()
    errors: list[Exception] = []

    def node(number: int) -> None:
        try:
            place = f"127.0.0.1:{port}"
            train(folders[number], progress[number], number, nodes=2, rendezvous=place, average=0.9)
        except (UserError, InterruptedError) as error:
            errors.append(error)

    threads = [threading.Thread(target=node, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_nodes_train_as_ranks_of_one_and_one_that_lost_its_files_gets_those_of_the_others(
    undisturbed: Path, tmp_path: Path
) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    errors = train_nodes(folders, [Stopper(), Silent()])
    assert sorted(type(error).__name__ for error in errors) == ["InterruptedError", "UserError"]
    done = finished_steps(folders[0] / "checkpoint.safetensors")
    assert STEPS // 2 - 1 <= done < STEPS
    shutil.rmtree(folders[1])
    assert not train_nodes(folders, [Silent(), Silent()])
    for folder, first in zip(folders, (1, done + 1), strict=True):
        assert_same(folder, undisturbed)
        assert losses(folder) == {step: loss for step, loss in losses(undisturbed).items() if step >= first}


def test_a_node_that_stays_alone_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "MEETING_S", 1)
    place = f"127.0.0.1:{free_port()}"
    with pytest.raises(UserError, match=rf"the 2 nodes did not meet at {place}; start the same command on each"):
        train(tmp_path / "run", nodes=2, rendezvous=place)


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("255.255.255.255:29400", r"no way to '255\.255\.255\.255' \(.+\); allowed: HOST:PORT of the first node"),
        ("127.1:29400", r"'127\.1' is 127\.0\.0\.1 here, which no other machine reaches; allowed: HOST:PORT"),
    ],
)
def test_a_meeting_place_that_cannot_be_one_is_named(place: str, line: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=line):
        train(tmp_path / "run", nodes=2, rendezvous=place, insecure=True)


NODE = """
import sys
from pathlib import Path
from tests.finetune import test_train_faults as faults

faults.train(Path(sys.argv[1]), first_core=1, **faults.two_nodes(int(sys.argv[2]), int(sys.argv[3])))
"""


def two_nodes(port: int, epochs: int = 1) -> dict[str, Any]:
    """Of a training that goes on with one of two nodes."""
    place = {"nodes": 2, "least_nodes": 1, "restarts": 2, "rendezvous": f"127.0.0.1:{port}"}
    return {**place, "precision": "float64", "epochs": epochs}


def start_node(folder: Path, port: int, epochs: int = 1) -> "subprocess.Popen[bytes]":
    """The second node, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, "-c", NODE, str(folder), str(port), str(epochs)], env=environment)


def of_ranks() -> list[psutil.Process]:
    """torchrun and ranks that this process has started, or processes below it have."""
    found = psutil.Process().children(recursive=True)
    return [one for one in found if {"tasks.finetune.worker"} & set(one.cmdline())]


class NodeKiller(Listener):
    """Kills another node, and notes before where all of them listen."""

    def __init__(self, node: subprocess.Popen[bytes]) -> None:
        super().__init__()
        self.node, self.listening = node, set[str]()
        self.left = [psutil.Process(node.pid)]

    def metrics(self, values: dict[str, float], step: int) -> None:
        super().metrics(values, step)
        if step >= STEPS // 3 and self.node.poll() is None:
            self.left = psutil.Process(self.node.pid).children(recursive=True)
            for process in of_ranks():
                sockets = process.net_connections("tcp")
                self.listening |= {one.laddr.ip for one in sockets if one.status == psutil.CONN_LISTEN}
            self.node.kill()
            self.node.wait()


def test_a_node_that_is_killed_is_not_waited_for_and_nothing_listens_beyond_the_place_of_meeting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node that is left goes on from its last checkpoint; torchrun and the rank of the other end with their launcher."""
    monkeypatch.setattr(launcher, "LAST_CALL_S", 20)
    port, folders = free_port(), [tmp_path / "a", tmp_path / "b"]
    other = start_node(folders[1], port)
    killer = NodeKiller(other)
    try:
        train(folders[0], killer, **two_nodes(port))
    finally:
        other.kill()
        other.wait()
    assert other.returncode == -signal.SIGKILL
    assert STEPS > finished_steps(folders[1] / "checkpoint.safetensors") >= STEPS // 3 - 1
    _, alive = psutil.wait_procs(killer.left, timeout=60)
    assert alive == []
    assert killer.listening == {"127.0.0.1"}
    assert killer.steps == list(range(1, STEPS + 1))
    expected = alone(tmp_path / "alone", precision="float64")
    assert losses(folders[0]) == pytest.approx(expected, rel=1e-6)


ENDLESS = 1000
"""Epochs; the training is interrupted once a node has come back."""


class Companion(Silent):
    """Starts the other node, which has an older checkpoint, while this one goes on alone; ends once both train together."""

    def __init__(self, own: Path, other: Path, port: int) -> None:
        self.own, self.other, self.port = own, other, port
        self.lost_at = self.back_at = 0
        self.node: subprocess.Popen[bytes] | None = None

    def metrics(self, values: dict[str, float], step: int) -> None:
        if not self.lost_at:
            self.other.mkdir()
            for name in ("history.jsonl", "checkpoint.safetensors"):
                shutil.copyfile(self.own / name, self.other / name)
            self.lost_at = max(losses(self.other))
        elif self.node is None and step > self.lost_at + 2:
            self.back_at, self.node = step, start_node(self.other, self.port, ENDLESS)
        elif self.node is not None and len(self.together()) > 2:
            raise InterruptedError

    def together(self) -> dict[int, float]:
        """Losses of the other node since it came back."""
        return {step: loss for step, loss in losses(self.other).items() if step > self.lost_at}


def test_a_node_that_comes_back_joins_those_that_went_on_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From their checkpoint, which is newer than its own."""
    monkeypatch.setattr(launcher, "LAST_CALL_S", 1)
    port, folders = free_port(), [tmp_path / "a", tmp_path / "b"]
    companion = Companion(folders[0], folders[1], port)
    try:
        with pytest.raises(InterruptedError):
            train(folders[0], companion, **two_nodes(port, ENDLESS))
    finally:
        if companion.node is not None:
            companion.node.kill()
            companion.node.wait()
    own, together = losses(folders[0]), companion.together()
    assert min(together) > companion.back_at > companion.lost_at
    shared = own.keys() & together.keys()
    assert len(shared) >= 2
    assert {step: own[step] for step in shared} == {step: together[step] for step in shared}


DIVERGING: dict[str, Any] = {"learning_rate": 1e12, "warmup_epochs": 0.0}
HINT = "lower learning_rate or set clip_norm$"


def test_numbers_that_are_none_end_the_training_with_one_line_and_reach_no_checkpoint(tmp_path: Path) -> None:
    """Where each step has a checkpoint, weights may be found to be no numbers before a loss is."""
    found = "(the loss is (nan|inf)|a weight is no number any more)"
    with pytest.raises(UserError, match=rf"training step \d+: {found}; {HINT}") as error:
        train(tmp_path / "run", processes=2, restarts=1, **DIVERGING)
    known = losses(tmp_path / "run")
    assert 1 <= len(known) < STEPS
    assert all(map(math.isfinite, known.values()))
    checkpoint = tmp_path / "run" / "checkpoint.safetensors"
    failed = re.search(r"training step (\d+)", str(error.value))
    assert failed is not None
    assert finished_steps(checkpoint) == int(failed[1]) - 1 >= 1
    assert all(tensor.isfinite().all() for tensor in load_file(checkpoint).values())


def test_losses_that_are_no_numbers_end_a_training_between_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"training step \d+: the loss is (nan|inf); {HINT}"):
        alone(tmp_path, checkpoint_every_s=1000, **DIVERGING)
    known = losses(tmp_path)
    assert 1 <= len(known) < STEPS
    assert all(map(math.isfinite, known.values()))


@pytest.mark.parametrize("changes", [{"precision": "bfloat16"}, {"channels_last": True}])
def test_faster_arithmetic_learns_the_same(
    changes: dict[str, Any], plain: tuple[Path, dict[int, float]], tmp_path: Path
) -> None:
    exact, fast = list(plain[1].values()), list(alone(tmp_path, **changes).values())
    assert exact != fast
    assert fast[:5] == pytest.approx(exact[:5], rel=0.03)
    assert fast[-1] == pytest.approx(exact[-1], rel=0.2)


COLOURS = ((220, 40, 40), (40, 220, 40), (40, 40, 220))
SHARDS, ROWS, BATCH, EPOCHS = 6, 32, 32, 16


def write_shards(folder: Path) -> None:
    """Noisy images of three colours: six shards for training, one each for validation and test."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for name in (*(f"train-{number}" for number in range(SHARDS)), "validation-0", "test-0"):
        labels = [row % 3 for row in range(ROWS)]
        images = []
        for label in labels:
            content = io.BytesIO()
            pixels = np.clip(np.array(COLOURS[label]) + rng.normal(0, 60, (16, 16, 3)), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(content, "PNG")
            images.append(content.getvalue())
        pyarrow.parquet.write_table(pyarrow.table({"image": images, "label": labels}), folder / f"{name}.parquet")


class Breaker(Silent):
    """Cuts a shard off in the middle when the training has begun."""

    def __init__(self, shard: Path) -> None:
        self.shard, self.content = shard, shard.read_bytes()
        self.steps: list[int] = []

    def metrics(self, values: dict[str, float], step: int) -> None:
        self.steps.append(step)
        if step == 1:
            self.shard.write_bytes(self.content[: len(self.content) // 2])


def test_a_shard_that_is_corrupt_is_named_and_once_mended_the_training_goes_on(tmp_path: Path) -> None:
    folder, shards = tmp_path / "run", tmp_path / "shards"
    write_shards(shards)
    folder.mkdir()
    breaker = Breaker(shards / "train-3.parquet")
    data = DataSettings(kind="parquet", path=shards, resolution=32)
    options = settings(processes=2, batch_size=BATCH, micro_batch=16, epochs=EPOCHS)
    total = EPOCHS * SHARDS * ROWS // BATCH
    with pytest.raises(UserError, match=r"parquet '.*train-3\.parquet': cannot be read .*; replace or remove it$"):
        base.run(options, MODEL, data, folder, breaker)
    done = finished_steps(folder / "checkpoint.safetensors")
    assert 1 <= done < total
    breaker.shard.write_bytes(breaker.content)
    base.run(options, MODEL, data, folder, breaker)
    assert sorted(set(breaker.steps)) == list(losses(folder)) == list(range(1, total + 1))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("std::bad_alloc"), True),
        (RuntimeError("Connection closed by peer"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_counts_as_out_of_memory(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


SMALL_MEMORY = """
import os, resource, sys
from pathlib import Path
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # threads take memory, too
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]) << 20,) * 2)
from tasks import base
from tasks.data import DataSettings
from tasks.models import ModelSettings
from tasks.progress import Silent

class Loud(Silent):
    def say(self, line):
        print(line, flush=True)

settings = base.Settings(
    epochs=1, batch_size=1024, micro_batch=1024, optimiser="sgd", learning_rate=0.05, processes=1, device="cpu",
    recalibration_images=64,
)
folder = Path(sys.argv[1])
data = DataSettings(kind="digits", resolution=96)
print(base.run(settings, ModelSettings(name="test_resnet"), data, folder, Loud())["micro_batch"])
"""


def test_where_memory_runs_out_smaller_micro_batches_are_tried_and_said(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", SMALL_MEMORY, str(tmp_path), "6144"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    *said, last = result.stdout.splitlines()
    assert "out of memory with micro-batches of 1024 images; goes on with 512" in said[0]
    assert int(last) == 1024 >> len(said)
    assert len(read_lines(tmp_path / "history.jsonl")) == 1
