"""The stage "runtime_options" on real agents: its file, its resuming, and what it refuses."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tailor_ir
from profiling_agents.client import AgentClient, MeasureSettings
from profiling_agents.messages import DEFAULT_ENGINE, Engine
from tasks.base.artifacts import read_lines
from tasks.base.errors import UserError
from tasks.base.progress import Bar, Silent
from tasks.measuring.runtime_options import stage as engine
from tasks.measuring.runtime_options.settings import ChosenEngine
from tasks.measuring.runtime_options.stage import TIMES_FILE, ModelsOfSubNets, OutputCheck
from tasks.measuring.subnets import LeasedDevice, SubNetMeter
from tests.support.tables.fixtures import device, supernet

__all__ = ["device", "supernet"]

QUICK = MeasureSettings(warmup_ms=1.0, min_blocks=1, min_samples=3, time_cap_ms=3.0, patience=0.0)
SETTINGS = engine.Settings(measure=QUICK, random_subnets=1, rounds=3, limit_s=10.0)
LOSING = {"ncnn": {"packing": "off"}, "onnxruntime": {"graph": "basic"}}


def board(client: AgentClient) -> LeasedDevice:
    return LeasedDevice(name="board", client=client)


@pytest.mark.few("onnxruntime")
def test_the_file_says_what_was_tried_and_what_came_out(device: AgentClient, supernet: Path, tmp_path: Path) -> None:
    result = engine.run(SETTINGS, supernet, board(device), tmp_path, Silent())
    found = ChosenEngine.read(tmp_path / engine.RUNTIME_OPTIONS_FILE)
    assert result == json.loads((tmp_path / engine.RUNTIME_OPTIONS_FILE).read_text())
    options = {one.name: one for one in device.capabilities().engine_options}
    assert found.device == "board"
    assert {name: choices[0] for name, choices in found.options.items()} == {
        n: one.default for n, one in options.items()
    }
    tried = {(one.option, one.choice) for one in found.tried} | {(one.option, one.choice) for one in found.left_out}
    assert tried == {(n, choice) for n, one in options.items() for choice in one.choices if choice != one.default}
    assert [one.kind for one in found.subnets] == ["largest", "smallest", "random"]
    assert found.subnets[0].default_ms > found.subnets[1].default_ms
    assert {one.option: one.choice for one in found.kept} == found.chosen
    assert (found.gain is None) == (found.chosen == {})
    assert found.failed == {}


@pytest.mark.few("onnxruntime")
def test_a_fixed_choice_is_taken_and_compared_with_the_defaults(
    device: AgentClient, supernet: Path, tmp_path: Path
) -> None:
    fixed = LOSING[device.capabilities().backend]
    settings = SETTINGS.model_copy(update={"tune": False, "fixed": fixed})
    engine.run(settings, supernet, board(device), tmp_path, Silent())
    found = ChosenEngine.read(tmp_path / engine.RUNTIME_OPTIONS_FILE)
    assert found.chosen == found.fixed == fixed
    assert found.tried == ()
    assert found.gain is not None
    assert found.gain.pairs == SETTINGS.rounds * len(found.subnets)


class Killed(Exception):
    """The end of a stage in the middle."""


class KilledProgress(Silent):
    """Ends the stage when so many models were timed."""

    def __init__(self, models: int) -> None:
        self.left = models

    @contextmanager
    def bar(self, name: str, total: int, done: int = 0) -> Iterator[Bar]:
        yield self

    def advance(self, count: int = 1) -> None:
        self.left -= count
        if self.left < 0:
            raise Killed

    def note(self, text: str) -> None:
        """Nobody listens."""


@pytest.mark.few("onnxruntime")
def test_a_killed_stage_goes_on_without_timing_anything_again(
    device: AgentClient, supernet: Path, tmp_path: Path
) -> None:
    patient = SETTINGS.model_copy(update={"limit_s": 600.0})  # it is killed before that, on any machine
    with pytest.raises(Killed):
        engine.run(patient, supernet, board(device), tmp_path, KilledProgress(30))
    before = read_lines(tmp_path / TIMES_FILE)
    engine.run(SETTINGS, supernet, board(device), tmp_path, Silent())
    after = read_lines(tmp_path / TIMES_FILE)
    assert before
    assert after[: len(before)] == before
    keys = [(row["step"], row["round"], row["subnet"], tuple(row["engines"])) for row in after]
    assert len(set(keys)) == len(keys)


def test_without_anything_to_choose_nothing_is_timed(device: AgentClient, supernet: Path, tmp_path: Path) -> None:
    engine.run(SETTINGS.model_copy(update={"tune": False}), supernet, board(device), tmp_path, Silent())
    assert ChosenEngine.read(tmp_path / engine.RUNTIME_OPTIONS_FILE).engine == DEFAULT_ENGINE
    assert not (tmp_path / TIMES_FILE).exists()


@pytest.mark.parametrize(
    ("fixed", "line"),
    [
        (
            {"speed": "warp"},
            r"^runtime options of device 'board': no runtime option 'speed' .*; change runtime_options.fixed or device",
        ),
        (
            {"arena": "big", "allocator": "big"},
            r"^runtime options of device 'board': .*runtime option '(arena|allocator)'.*",
        ),
    ],
)
def test_an_unknown_fixed_choice_is_one_line(
    device: AgentClient, supernet: Path, tmp_path: Path, fixed: dict[str, str], line: str
) -> None:
    with pytest.raises(UserError, match=line) as refused:
        engine.run(SETTINGS.model_copy(update={"fixed": fixed}), supernet, board(device), tmp_path, Silent())
    assert "\n" not in str(refused.value)


def test_outputs_that_differ_are_told(device: AgentClient, supernet: Path) -> None:
    other = {"ncnn": {"packing": "off", "sgemm": "off"}, "onnxruntime": {"graph": "basic"}}[
        device.capabilities().backend
    ]
    maker = ModelsOfSubNets(tailor_ir.load(supernet), SETTINGS, device.capabilities())
    jobs = maker.whole(tuple(maker.kinds))
    assert [maker.kinds[one.job.key] for one in jobs] in (["largest", "smallest"], ["smallest", "largest"])
    assert OutputCheck(device, jobs, 1e-4, 0).difference(Engine(choices=other)) is None
    reason = OutputCheck(device, jobs, 0.0, 0).difference(Engine(choices=other))
    assert reason is not None
    assert reason.startswith("outputs differ from those of the defaults by ")


def test_latencies_of_another_engine_are_kept_apart(device: AgentClient, supernet: Path, tmp_path: Path) -> None:
    from tasks.base.artifacts import SubNetStore

    net, store = tailor_ir.load(supernet), SubNetStore(tmp_path / "subnets")
    other = device.with_engine(Engine(choices=LOSING[device.capabilities().backend]))
    files = {
        SubNetMeter(net, client, QUICK, SETTINGS.limits).lines(store, supernet, tmp_path / "own", Silent()).shared
        for client in (device, other, device.with_engine(DEFAULT_ENGINE))
    }
    assert len(files) == 2
