"""`autotailor stress`: a bundle served while other processes come and go."""

import json
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from rich.console import Console

from adaptive_runtime.bundle.bundles import BundleManifest
from adaptive_runtime.state.traces import LoadTrace
from flows.cli import main
from flows.config.bundles import StressConfig
from flows.config.compose import compose_config
from flows.config.validate import validate
from tailor_ir import SuperNet
from tasks.base.progress import Silent
from tasks.deploy.stress import Settings, run, stressing
from tasks.deploy.stress.results import WHOLE, StressedAnswer, StressReport, by_phase, stress_tables
from tasks.deploy.stress.stressing import AskedBundle, StressSchedule
from tests.support.runtime.service_process import INFER, body, served, soon
from tests.support.runtime.service_process import images as some_images


@pytest.fixture
def output(bundle: Path, tmp_path: Path) -> Path:
    """The output folder of a run with a bundle of two SubNets for onnxruntime."""
    shutil.copytree(bundle, tmp_path / "out" / "exports" / "onnxruntime" / "bundle")
    return tmp_path / "out"


def test_the_defaults_in_conf_are_the_defaults_in_code() -> None:
    assert validate(StressConfig, compose_config("stress", [])) == StressConfig()


def test_the_demo_s_run_writes_what_the_stress_serves() -> None:
    config = compose_config("config", ["+preset=demo"])
    assert config["export"]["bundle"] is True
    assert "onnxruntime" in config["device"]


@pytest.mark.parametrize(
    ("words", "line"),
    {
        "no device": (["output_dir={out}"], "stress: got 0 devices; allowed: one; write autotailor stress DEVICE"),
        "two devices": (["ncnn", "onnxruntime"], "stress: got 2 devices"),
        "no such device": (
            ["onxruntime", "output_dir={out}"],
            "'onxruntime' has no bundle in '{out}'; allowed: onnxruntime; did you mean 'onnxruntime'",
        ),
        "no bundle": (
            ["onnxruntime", "output_dir={out}/none"],
            r"bundle '{out}/none/exports/onnxruntime/bundle': is not there; .* export\.bundle=true",
        ),
        "no such option": (
            ["onnxruntime", "stress.budgetms=5"],
            "option 'stress.budgetms': is unknown; .*did you mean 'stress.budget_ms'",
        ),
        "a trace that is none": (
            ["onnxruntime", "output_dir={out}", "stress.trace={out}/exports/onnxruntime/bundle/bundle.json"],
            r"bundle\.json: .*; record or draw the trace again$",
        ),
        "a trace that is not there": (
            ["onnxruntime", "output_dir={out}", "stress.trace={out}/none.json"],
            r"none\.json: cannot be read \(No such file or directory\); record or draw the trace again$",
        ),
        "no time": (["onnxruntime", "stress.seconds=0"], "stress.seconds: got 0; allowed: greater than 0"),
        "a budget that nothing keeps": (
            ["onnxruntime", "output_dir={out}", "stress.budget_ms=5"],
            r"stress\.budget_ms: no variant keeps 5 ms for 64 images; the fastest takes .* without load; allowed: .* and more",
        ),
        "too little slack": (["onnxruntime", "output_dir={out}", "stress.slack=0.5"], "stress.slack: no variant keeps"),
        "a format that is not there": (
            ["onnxruntime", "output_dir={out}", "stress.format=ncnn"],
            "has no SubNets in ncnn; allowed: onnx",
        ),
    }.values(),
)
def test_bad_input_is_one_line(output: Path, capsys: pytest.CaptureFixture[str], words: list[str], line: str) -> None:
    assert main(["stress", *(word.format(out=output) for word in words)]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert re.search(line.format(out=output), lines[0]), lines


def test_a_damaged_bundle_is_one_line(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (output / "exports" / "onnxruntime" / "bundle" / "calibration.npz").unlink()
    assert main(["stress", "onnxruntime", f"output_dir={output}"]) == 2
    assert "calibration.npz: cannot be read" in capsys.readouterr().err


@pytest.mark.long
def test_all_phases_are_answered_and_told_and_nothing_stays_behind(
    output: Path, bundle: Path, net: SuperNet, capsys: pytest.CaptureFixture[str]
) -> None:
    pace = ["stress.seconds=1.2", "stress.requests_per_s=10", "stress.cpu_processes=1", "stress.images=3"]
    pace += ["stress.budget_ms=3900"]
    file, before = output / "stress.json", set(psutil.Process().children(recursive=True))
    assert main(["stress", "onnxruntime", f"output_dir={output}", *pace, "--json", str(file)]) == 0
    shown, found = capsys.readouterr(), json.loads(file.read_text())
    rows: dict[tuple[str, str], Any] = {(row["phase"], row["system"]): row for row in found["phases"]}
    phases = list(dict.fromkeys(phase for phase, _ in rows))
    assert phases[-1] == WHOLE
    assert phases[0] == "calm"
    largest = net.space.digest(net.max_config)
    for phase in phases:
        assert rows[phase, "adapts"]["answers"] == rows[phase, "largest alone"]["answers"] > 0
        assert list(rows[phase, "largest alone"]["subnets"]) == [largest]
        assert rows[phase, "largest alone"]["right"] == 1.0  # without labels its answers are the right ones
    assert 2 <= rows[WHOLE, "adapts"]["answers"] <= 12, "the first and the last are never left out"
    assert found["budget_ms"] == 3900.0
    assert found["switches"][0]["step"] == "start"
    assert "budget 1.3e+03 ms" in found["switches"][0]["reason"], "of each image"
    for row in rows.values():
        assert sum(row["subnets"].values()) == 3 * row["answers"]
    assert "live page: http://127.0.0.1:" in shown.err
    for text in ("under stress, within 3.9e+03 ms", "what serves, and why", "the largest alone"):
        assert text in shown.out
    assert set(psutil.Process().children(recursive=True)) <= before
    assert BundleManifest.from_json((bundle / "bundle.json").read_text()).source_images is None


def test_a_service_ends_when_the_process_that_started_it_is_killed(output: Path) -> None:
    bundle = output / "exports" / "onnxruntime" / "bundle"
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom tasks.deploy.stress.stressing import bundle_service\n"
        "with bundle_service(Path(sys.argv[1]), [], 600):\n    print('torch' in sys.modules, flush=True)\n    time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(bundle)], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "False\n", "a stress needs no torch"
        started = psutil.Process(parent.pid).children(recursive=True)
    finally:
        parent.kill()
        parent.communicate()
    assert started
    _, alive = psutil.wait_procs(started, timeout=60)
    assert not alive


def answer(phase: str, latency_ms: float, subnet: str = "a", **changed: Any) -> StressedAnswer:
    """An answer of the service that adapts."""
    return StressedAnswer(phase, "adapts", (subnet,), latency_ms, latency_ms + 1, 0.8, right=1.0)._replace(**changed)


def test_a_phase_has_shares_and_means_of_its_answers() -> None:
    given = [answer("calm", 2.0), answer("calm", 6.0, "b", accuracy=0.6, right=0.0), answer("stress", 4.0)]
    calm, stress, whole = by_phase(given, budget_ms=5.0)
    assert (calm.answers, calm.in_time, calm.mean_ms, calm.mean_round_trip_ms) == (2, 0.5, 4.0, 5.0)
    assert (calm.accuracy, calm.accuracy_in_time, calm.right) == pytest.approx((0.7, 0.4, 0.5))
    assert (stress.phase, stress.in_time, stress.subnets) == ("stress", 1.0, {"a": 1})
    assert (whole.phase, whole.answers, whole.subnets) == (WHOLE, 3, {"a": 2, "b": 1})
    assert whole.in_time == pytest.approx(2 / 3)


def burned_s(process: psutil.Process, seconds: float) -> float:
    """Let a process compute until it has used this many seconds of a core; the time that it has used [s]."""
    while (used_s := float(sum(process.cpu_times()[:2]))) < seconds:
        time.sleep(0.05)
    return used_s


def test_processor_time_of_own_processes_is_not_that_of_other_programs() -> None:
    before_s = stressing._own_s()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as own:
        used_s = burned_s(psutil.Process(own.pid), 0.3)
        after_s = stressing._own_s()
        own.kill()
    assert after_s - before_s >= used_s - 0.05


def test_processor_time_of_other_programs_is_seen() -> None:
    start_s, others = time.monotonic(), stressing.OtherPrograms()
    # The shell ends, so that the program is nobody's child.
    command = f"'{sys.executable}' -c 'while True: pass' >/dev/null 2>&1 & echo $!"
    orphan = psutil.Process(int(subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE).stdout))
    try:
        used_s = burned_s(orphan, 0.3)
        share = others.share()
    finally:
        orphan.kill()
    cores_s = (time.monotonic() - start_s) * (psutil.cpu_count() or 1)
    assert used_s * 0.8 / cores_s <= share <= 1.0


def test_a_load_of_other_programs_is_told_below_the_tables() -> None:
    phases = by_phase([answer("calm", 2.0), answer("calm", 3.0)._replace(system="largest alone")], budget_ms=5.0)
    calm = StressReport("bundle", 5.0, "test", True, phases, (), other_share=0.04)
    for report, is_told in ((calm, False), (replace(calm, other_share=0.31), True)):
        console = Console(width=200, file=StringIO())
        console.print(stress_tables(report))
        assert isinstance(console.file, StringIO)
        words = "not calm enough to show the effect: other programs used 31% of its cores"
        assert (words in console.file.getvalue()) is is_told


@pytest.mark.long
def test_the_budget_follows_the_latency_of_the_most_accurate_subnet_in_calm(output: Path) -> None:
    report = run(Settings(slack=1e4, images=2, seconds=0.3), output / "exports" / "onnxruntime" / "bundle", Silent())
    assert 1e3 < report.budget_ms < 1e7, "ten thousand times what it takes here, not what the bundle tells"
    assert report.whole("adapts").in_time == 1.0


def test_requests_take_all_images_in_turn(bundle: Path) -> None:
    asked = AskedBundle.open(bundle, Settings())
    for images in (1, 3, len(asked.images), 2 * len(asked.images) + 1):
        requests = asked.requests(images)
        assert {len(one) for one in requests} == {images}
        assert set(np.concatenate(requests).tolist()) == set(range(len(asked.images)))


@pytest.mark.long
def test_a_load_that_a_service_has_recorded_is_played(output: Path, tmp_path: Path) -> None:
    bundle, file = output / "exports" / "onnxruntime" / "bundle", tmp_path / "load.json"
    with served(bundle, tmp_path / "log", "--load-trace", str(file)) as service:
        told = set[str]()

        def is_recorded() -> bool:
            """Whether several samples of the device have come, after one more request."""
            assert service.http.post(INFER, **body(some_images())).status_code == 200
            told.add(json.dumps(service.state()["load"]))
            time.sleep(0.25)
            return len(told) > 5

        assert soon(is_recorded)
    trace = LoadTrace.read(file)
    assert len(trace.arrivals_s) >= 3
    assert trace.memory
    report = run(Settings(slack=1e4, images=2, trace=file, cpu_processes=1, memory_processes=1), bundle, Silent())
    assert 1 <= report.whole("adapts").answers <= len(trace.arrivals_s)
    assert {phase.phase for phase in report.phases} <= {"calm", "stress", WHOLE}


def test_a_trace_without_requests_gets_some_and_its_busy_times_are_the_stress(tmp_path: Path) -> None:
    file, shares = tmp_path / "load.json", {"cpu": (0.1, 0.2, 0.9), "bandwidth": (0.0,) * 3, "memory": (0.0, 0.6, 0.0)}
    load = {"origin": "written", "duration_s": 3.0, "times_s": (0.0, 1.0, 2.0), "slow_down": (), **shares}
    LoadTrace.model_validate(load).write(file)
    schedule = StressSchedule.of(Settings(trace=file, requests_per_s=2.0))
    assert schedule.trace.arrivals_s == (0.0, 0.5, 1.0, 1.5, 2.0, 2.5)
    assert [schedule.phase(at_s) for at_s in schedule.trace.arrivals_s] == ["calm"] * 2 + ["stress"] * 4
    given = LoadTrace.model_validate({**load, "arrivals_s": (0.2, 2.9)})
    given.write(file)
    assert StressSchedule.of(Settings(trace=file)).trace == given


def test_phases_press_on_what_has_processes() -> None:
    trace = StressSchedule.of(Settings(seconds=3.0, requests_per_s=1.0)).trace
    assert [trace.pressure(place) for place in range(3)] == [
        dict.fromkeys(("cpu", "bandwidth", "cache", "memory"), share) for share in (0.0, 1.0, 0.0)
    ]
    assert trace.arrivals_s == (0.0, 1.0, 2.0)


def test_the_stress_is_a_third_of_the_time() -> None:
    scenario = Settings(seconds=30.0).scenario
    assert [scenario.at(time_s).phase.cpu for time_s in (0, 9.9, 10, 19.9, 20, 30)] == [0, 0, 1, 1, 0, 0]
