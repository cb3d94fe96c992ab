"""Accuracies of many SubNets: those of one by one, whatever is shared, kept, killed or known from before."""

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import tailor_ir
from tailor_ir.subnets.prefixes import Prefixes
from tasks.base.artifacts import read_lines
from tasks.base.progress import Silent
from tasks.data import DataSettings, load
from tasks.evaluation.subnets import Accuracy, accuracies, accuracy, statistics_of
from tasks.evaluation.subnets.images import KnownStatistics
from tests.support import SUPPORT
from tests.support.predict.evaluation_process import candidates, evaluate, images, network

pytestmark = pytest.mark.usefixtures("one_thread")

LIMIT_SECONDS = 300
KILLS = 5
"""Evaluations of which one is killed early enough."""


@pytest.fixture(scope="module")
def net() -> tailor_ir.SuperNet:
    return network()


@pytest.fixture(scope="module")
def alone(net: tailor_ir.SuperNet) -> dict[str, Accuracy]:
    """The accuracy of each candidate, evaluated by itself on a network and images of its own."""
    torch.set_num_threads(1)
    own, data = network(), images()
    return {net.space.digest(config): accuracy(own, config, data) for config in candidates(net)}


@pytest.mark.long
@pytest.mark.parametrize(("cores", "features_mib"), [(1, 64.0), (2, 64.0), (3, 1.0), (2, 0.0)])
def test_accuracies_are_those_of_one_by_one(
    net: tailor_ir.SuperNet,
    alone: dict[str, Accuracy],
    cores: int,
    features_mib: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    file, configs = tmp_path / "evaluated.jsonl", candidates(net)
    found = accuracies(net, configs, images(features_mib=features_mib), file, Silent())
    assert found == [alone[net.space.digest(config)] for config in configs]
    lines = read_lines(file)
    assert {line["digest"]: Accuracy.of(line) for line in lines} == alone
    assert all(each.right.shape == (150,) and each.right.sum() == each.correct for each in found)
    assert len(lines) == len(alone) > 40
    assert len({found.correct for found in alone.values()}) > 5
    assert {found.total for found in alone.values()} == {150}


def killed(file: Path) -> int:
    """Finished SubNets of an evaluation that is killed when there is one. All: it was too late."""
    script = SUPPORT / "predict" / "evaluation_process.py"
    process = subprocess.Popen(
        [sys.executable, script, file], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    until = time.monotonic() + LIMIT_SECONDS
    try:
        while not file.exists():
            assert process.poll() is None or file.exists()
            assert time.monotonic() < until, "not reached in time"
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    return len(read_lines(file))


@pytest.mark.long
def test_an_evaluation_that_is_killed_goes_on_and_repeats_no_finished_subnet(
    alone: dict[str, Accuracy], tmp_path: Path
) -> None:
    files = (tmp_path / f"evaluated{number}.jsonl" for number in range(KILLS))
    file = next(file for file in files if killed(file) < len(alone))
    before = file.read_bytes()
    found = evaluate(file)
    lines = read_lines(file)
    assert file.read_bytes().startswith(before[: before.rfind(b"\n") + 1])
    assert len(lines) == len({line["digest"] for line in lines}) == len(alone)
    assert sorted(found) == sorted(alone[line["digest"]] for line in lines)


class _Interrupted(Exception):
    pass


class _Interrupting(Silent):
    """Progress of a run that is interrupted after a few SubNets."""

    def __init__(self, after: int) -> None:
        self.left = after

    @contextmanager
    def bar(self, name: str, total: int, done: int = 0) -> Iterator[Any]:
        yield self

    def advance(self, count: int = 1) -> None:
        self.left -= count
        if self.left < 0:
            raise _Interrupted

    def note(self, text: str) -> None:
        """Nobody listens."""


@pytest.mark.long
def test_an_interrupted_evaluation_ends_soon_and_keeps_what_is_finished(
    net: tailor_ir.SuperNet, alone: dict[str, Accuracy], tmp_path: Path
) -> None:
    file, configs = tmp_path / "evaluated.jsonl", candidates(net)
    with pytest.raises(_Interrupted):
        accuracies(net, configs, images(), file, _Interrupting(3))
    assert 3 < len(read_lines(file)) + 1 <= 5
    assert accuracies(net, configs, images(), file, Silent()) == [alone[net.space.digest(c)] for c in configs]


# -- statistics that are known ---------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_subnet_is_recalibrated_once_for_all_splits(
    net: tailor_ir.SuperNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    validation, configs = images(), candidates(net)[:10]
    test = validation.of(load(DataSettings(kind="digits"), "test"))
    asked: list[int] = []
    observe = Prefixes.observe

    def counted(own: Prefixes, batches: Iterable[torch.Tensor]) -> list[tailor_ir.Statistics]:
        asked.append(1)
        return observe(own, batches)

    monkeypatch.setattr(Prefixes, "observe", counted)
    for name, data in (("validation", validation), ("test", test)):
        found = accuracies(net, configs, data, tmp_path / name, Silent())
        expected = images(name)
        assert found == [accuracy(net, config, expected) for config in configs]
    pieces = len(asked)
    assert pieces > 0
    accuracies(net, configs, test, tmp_path / "again", Silent())
    assert len(asked) == pieces
    config = next(config for config in configs if net.space.digest(config) != net.space.digest(net.max_config))
    known = statistics_of(net, config, validation)
    assert all(known[name] is tensor for name, tensor in statistics_of(net, config, test).items())


def test_statistics_from_before_a_change_of_weights_are_forgotten() -> None:
    own, data = network(), images()
    first = statistics_of(own, own.min_config, data)
    assert all(found is first[name] for name, found in statistics_of(own, own.min_config, data).items())
    with torch.no_grad():
        for parameter in own.elastic.parameters():
            parameter.mul_(1.5)
    second = statistics_of(own, own.min_config, data)
    expected = own.recalibrate(own.min_config, data.calibration(own.input_size(own.min_config)))
    assert all(torch.equal(expected[name], tensor) for name, tensor in second.items())
    assert not any(torch.equal(first[name], tensor) for name, tensor in second.items())
    other = network()
    third = statistics_of(other, other.min_config, data)
    assert all(torch.equal(first[name], tensor) for name, tensor in third.items())
    assert not any(tensor is first[name] for name, tensor in third.items())


def test_known_statistics_stay_within_their_limit(net: tailor_ir.SuperNet) -> None:
    known = KnownStatistics(limit_mib=2.5 * 4 / 1024)
    for number in range(5):
        known.put(net.elastic, str(number), {"mean": torch.full((1024,), float(number))})
        assert known.get(net.elastic, "0") is not None
    assert [number for number in range(5) if known.get(net.elastic, str(number)) is not None] == [0, 4]
    assert float(known.get(net.elastic, "4")["mean"][0]) == 4.0  # type: ignore[index]
    known.put(net.elastic, "huge", {"mean": torch.zeros(10_000)})
    assert known.get(net.elastic, "huge") is None
    known.put(net.elastic, "5", {"mean": torch.zeros(1024)})
    assert known.get(net.elastic, "5") is not None


def test_statistics_come_from_the_stated_number_of_images(net: tailor_ir.SuperNet) -> None:
    data = images(recalibration_images=80, batch_size=32)
    sizes = [len(x_BCHW) for x_BCHW in data.calibration((24, 24))]
    assert sizes == [32, 32, 16]
    assert list(itertools.accumulate(len(y_B) for _, y_B in data.batches((24, 24))))[-1] == 150
