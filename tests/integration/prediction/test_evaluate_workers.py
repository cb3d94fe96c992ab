"""SubNets that other processes evaluate, by real Dask: the accuracies of this process, and one line where that cannot be."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, Future
from pydantic import ValidationError

import tailor_ir
from flows.config import EvaluateSettings
from flows.pipeline.workers import cluster
from flows.pipeline.workers.cluster import DaskWorkers
from flows.pipeline.workers.process import evaluate
from tasks.base.artifacts import digest_of, read_lines
from tasks.base.errors import UserError
from tasks.base.progress import Silent
from tasks.evaluation.batches import EvaluationBatch, evaluate_batch
from tasks.evaluation.quantise import Int8
from tasks.evaluation.settings import Settings as QuantiseSettings
from tasks.evaluation.subnets import Accuracy, EvaluationData, accuracies, evaluations
from tests.support.ports import free_port
from tests.support.predict.evaluation_process import candidates, images, network

pytestmark = pytest.mark.usefixtures("one_thread")

RANDOM = 8
LIMIT_S = 300


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> tailor_ir.SuperNet:
    """A SuperNet in a folder."""
    folder = tmp_path_factory.mktemp("stored") / "supernet"
    network().save(folder)
    return tailor_ir.load(folder)


@pytest.fixture(scope="module")
def here(net: tailor_ir.SuperNet, tmp_path_factory: pytest.TempPathFactory) -> list[Accuracy]:
    """The accuracies of all candidates, evaluated in this process."""
    file = tmp_path_factory.mktemp("here") / "evaluated.jsonl"
    return accuracies(net, candidates(net, RANDOM), images(), file, Silent())


@pytest.fixture(scope="module")
def workers() -> Iterator[DaskWorkers]:
    """Two processes: three are asked for, but they have two cores."""
    with pytest.MonkeyPatch.context() as patch, DaskWorkers(EvaluateSettings(workers="3")) as found:
        patch.setattr(os, "sched_getaffinity", lambda process: {process, 1})
        yield found


def data_for(workers: DaskWorkers, split: str = "validation") -> EvaluationData:
    """The images of the tests, for these workers."""
    found = images(split)
    found.workers = workers
    return found


def test_two_processes_give_the_accuracies_of_one_to_the_last_digit(
    net: tailor_ir.SuperNet, here: list[Accuracy], workers: DaskWorkers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs, sent = candidates(net, RANDOM), list[tuple[Any, ...]]()
    submit = Client.submit

    def recorded(client: Client, *words: Any, **options: Any) -> Future:
        sent.append(words)
        return submit(client, *words, **options)

    monkeypatch.setattr(Client, "submit", recorded)
    monkeypatch.setattr(evaluations, "evaluated_here", None)
    assert accuracies(net, configs, data_for(workers), tmp_path / "first.jsonl", Silent()) == here
    assert [type(one.correct) for one in here] == [int] * len(here)
    assert len({one.loss for one in here}) > 10
    batches = [json.loads(text)["batch"] for function, text in sent if function is evaluate]
    assert len(batches) == len(sent) > 2
    assert max(len(text) for _, text in sent) < 10_000
    found = {digest: tuple(code) for batch in batches for digest, code in batch["subnets"].items()}
    codes = map(tuple, net.space.encode(configs).tolist())
    assert found == {net.space.digest(config): code for config, code in zip(configs, codes, strict=True)}


@pytest.mark.long
def test_other_splits_and_int8_are_evaluated_as_here(
    net: tailor_ir.SuperNet, workers: DaskWorkers, tmp_path: Path
) -> None:
    configs = candidates(net, RANDOM)[:4]
    found = accuracies(net, configs, data_for(workers, "test"), tmp_path / "test.jsonl", Silent())
    assert found == accuracies(net, configs, images("test"), tmp_path / "test_here.jsonl", Silent())
    int8 = Int8(QuantiseSettings())
    quantised = data_for(workers).in_precision(int8)
    found = accuracies(net, configs[:2], quantised, tmp_path / "int8.jsonl", Silent())
    assert found == accuracies(net, configs[:2], images().in_precision(int8), tmp_path / "int8_here.jsonl", Silent())


@pytest.mark.long
def test_the_batch_of_a_worker_that_dies_is_done_again(
    net: tailor_ir.SuperNet, here: list[Accuracy], workers: DaskWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluations, "MOST_TOGETHER", 3)
    configs = {net.space.digest(config): config for config in candidates(net, RANDOM)}
    pids = set(workers.connect().run(os.getpid).values())
    assert len(pids) == 2
    found: dict[str, Accuracy] = {}
    for one in workers.evaluated(net, configs, data_for(workers)):
        if not found and one.accuracies:
            os.kill(min(pids), signal.SIGKILL)
        found |= one.accuracies
    assert found == dict(zip(map(net.space.digest, candidates(net, RANDOM)), here, strict=True))


def test_processes_of_this_machine_take_nobody_without_their_key_and_show_nothing(workers: DaskWorkers) -> None:
    address = workers.connect().scheduler.address
    assert address.startswith("tls://127.0.0.1:")
    with pytest.raises(OSError, match=r"(?i)timed out|handshake|closed|ssl"):
        Client(address.replace("tls", "tcp"), timeout=1, set_as_default=False)
    listening = workers.connect().run_on_scheduler(lambda dask_scheduler: dask_scheduler.http_server.address)
    assert listening == "127.0.0.1"
    routes = workers.connect().run_on_scheduler(
        lambda dask_scheduler: len(dask_scheduler.http_application.applications)
    )
    assert routes == 0


@pytest.mark.parametrize("name", ["torch", "autotailor's code"])
def test_workers_of_another_version_are_refused(
    net: tailor_ir.SuperNet, workers: DaskWorkers, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {**cluster.versions(), name: "other"}
    monkeypatch.setattr(cluster, "versions", lambda: own)
    line = rf"evaluate\.workers=3: {name}: version .+; allowed: other, that of the run; install the same on both sides"
    with pytest.raises(UserError, match=line):
        accuracies(net, [net.max_config], data_for(workers), tmp_path / "none.jsonl", Silent())
    assert not (tmp_path / "none.jsonl").exists()


# -- a scheduler elsewhere -------------------------------------------------------------------------------------------


@contextmanager
def process(name: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """`dask scheduler` or `dask worker`."""
    command = [sys.executable, "-m", f"distributed.cli.dask_{name}", *words, "--no-dashboard"]
    path = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=path, stderr=subprocess.DEVNULL) as started:
        try:
            yield started
        finally:
            started.kill()


class _After(Silent):
    """Progress that does something when the first SubNet is finished."""

    def __init__(self, act: Any) -> None:
        self.act = act

    @contextmanager
    def bar(self, name: str, total: int, done: int = 0) -> Iterator[Any]:
        yield self

    def advance(self, count: int = 1) -> None:
        if count:
            self.act()

    def note(self, text: str) -> None:
        """Nobody listens."""


@pytest.mark.long
def test_a_scheduler_that_ends_is_one_line_and_what_is_evaluated_is_kept(
    net: tailor_ir.SuperNet, here: list[Accuracy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, configs, file = free_port(), candidates(net, RANDOM), tmp_path / "evaluated.jsonl"
    where = f"dask://127.0.0.1:{port}"
    monkeypatch.setattr(evaluations, "MOST_TOGETHER", 2)
    monkeypatch.setattr(cluster, "CONNECT_S", float(LIMIT_S))
    with (
        DaskWorkers(EvaluateSettings(workers=where)) as nobody,
        pytest.raises(
            UserError, match=rf"evaluate\.workers={where}: no scheduler answers .*; start one with: dask scheduler"
        ),
    ):
        nobody.connect()
    with process("scheduler", "--host", "127.0.0.1", "--port", str(port)) as scheduler:
        reach(port)
        with monkeypatch.context() as patch:
            patch.setattr(Client, "wait_for_workers", impatient)
            with (
                DaskWorkers(EvaluateSettings(workers=where)) as lonely,
                pytest.raises(UserError, match="the scheduler has no workers; start one with: dask worker"),
            ):
                lonely.connect()
        with (
            process("worker", f"tcp://127.0.0.1:{port}", "--nthreads", "1"),
            DaskWorkers(EvaluateSettings(workers=where)) as workers,
            pytest.raises(UserError, match=r"the scheduler is gone; [1-9]\d* of \d+ SubNets of this step are") as told,
        ):
            accuracies(net, configs, data_for(workers), file, _After(scheduler.kill))
    assert str(told.value).endswith("evaluated and kept; the same command goes on")
    kept = read_lines(file)
    assert 0 < len(kept) < len(configs)
    assert accuracies(net, configs, images(), file, Silent()) == here
    assert len(read_lines(file)) == len({net.space.digest(config) for config in configs})


wait_for_workers = Client.wait_for_workers


def impatient(client: Client, count: int, timeout: float) -> None:
    """Waits a second for workers, however long the scheduler may take to answer."""
    wait_for_workers(client, count, timeout=min(timeout, 1.0))


def reach(port: int) -> None:
    """Wait for a server of this machine."""
    for _ in range(10 * LIMIT_S):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise AssertionError("not reached in time")


# -- one line for what cannot be -------------------------------------------------------------------------------------


def batch_of(net: tailor_ir.SuperNet, **changes: Any) -> EvaluationBatch:
    """The largest SubNet."""
    assert net.folder is not None
    subnet = {net.space.digest(net.max_config): tuple(net.space.encode([net.max_config])[0].tolist())}
    known = {"supernet": net.folder, "supernet_digest": digest_of(net.folder), "images": images().recipe}
    return EvaluationBatch.model_validate({**known, "subnets": subnet, "threads": 1, **changes})


def test_a_worker_notices_another_supernet_and_other_data(net: tailor_ir.SuperNet, tmp_path: Path) -> None:
    assert next(iter(evaluate_batch(batch_of(net)).values())).total == 150
    with pytest.raises(UserError, match="is not there; workers need the output folder under the same path"):
        evaluate_batch(batch_of(net, supernet=tmp_path / "none"))
    with pytest.raises(UserError, match=r"has another content: digest .*; allowed: 0123"):
        evaluate_batch(batch_of(net, supernet_digest="0123"))
    recipe = images().recipe
    other = recipe.model_copy(update={"data": recipe.data.model_copy(update={"seed": 1})})
    with pytest.raises(UserError, match="data 'digits': other samples or labels than those of the run"):
        evaluate_batch(batch_of(net, images=other))


@pytest.mark.parametrize(
    ("workers", "line"),
    [
        (0, "workers=0; allowed: null, a number of processes from 1 to 256, dask://HOST:PORT or"),
        ("ray://10.0.0.1:1", "workers=ray://10.0.0.1:1; allowed"),
        ("dask://10.0.0.1", "allowed: null, a number"),
        ("dask://10.0.0.1:99999", "allowed: null, a number"),
        ("dask://10.0.0.1:8786", "allowed: dask\\+tls://, or insecure=true in a network whose every machine you trust"),
    ],
)
def test_bad_workers_are_refused(workers: Any, line: str) -> None:
    with pytest.raises(ValidationError, match=line):
        EvaluateSettings(workers=workers)


@pytest.mark.long
def test_a_scheduler_beyond_this_machine_takes_tls_or_a_word_of_the_user() -> None:
    assert str(EvaluateSettings(workers="dask+tls://gpu-1.lab:8786").scheduler) == "tls://gpu-1.lab:8786"
    assert str(EvaluateSettings(workers="dask://10.0.0.1:8786", insecure=True).scheduler) == "tcp://10.0.0.1:8786"
    assert str(EvaluateSettings(workers="dask://[::1]:8786").scheduler) == "tcp://[::1]:8786"
    settings = EvaluateSettings.model_validate({"workers": 2})  # as Hydra reads it
    assert (settings.processes, settings.scheduler) == (2, None)


@pytest.mark.long
def test_tls_without_certificates_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = f"dask+tls://127.0.0.1:{server.getsockname()[1]}"
        with (
            DaskWorkers(EvaluateSettings(workers=where)) as workers,
            pytest.raises(
                UserError, match=r"Dask's config names no certificates; allowed: distributed\.comm\.tls\.ca-file"
            ),
        ):
            workers.connect()
