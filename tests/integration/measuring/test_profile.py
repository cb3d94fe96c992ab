"""Every operator of a SuperNet is found, and measured once on a device, whatever is killed in between."""

import json
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

import tailor_ir
from profiling_agents.client import AgentClient, AgentError, MeasureSettings, local_agent
from tasks.base.progress import Silent
from tasks.measuring import operators as enumeration
from tasks.measuring import profile
from tasks.measuring.lut import Lut, LutStore

QUICK = profile.Settings(
    method="alone", measure=MeasureSettings(time_cap_ms=5.0, warmup_ms=0.5, min_blocks=1, patience=0.0), flush_s=0.05
)


@pytest.fixture(scope="module")
def operators(supernet: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("operators")
    (folder / "result.json").write_text(json.dumps(enumeration.run(supernet, folder, Silent())))
    return folder


def test_enumerated_operators_are_those_of_all_subnets(supernet: Path, operators: Path) -> None:
    net = tailor_ir.load(supernet)
    rng = np.random.default_rng(0)
    found = set()
    for config in (net.max_config, net.min_config, *(net.space.sample(rng) for _ in range(200))):
        found |= {feature.digest for feature in net.operators(config)}
    listed = enumeration.read_operators(operators)
    assert set(listed) == found
    assert all(feature.digest == digest for digest, feature in listed.items())


def test_every_witness_has_its_operator(supernet: Path, operators: Path) -> None:
    net = tailor_ir.load(supernet)
    rows = json.loads((operators / enumeration.OPERATORS_FILE).read_text())["operators"]
    assert len(rows) == len(enumeration.read_operators(operators))
    for row in rows:
        assert row["digest"] in {feature.digest for feature in net.operators(row["witness"])}


def test_summary_counts_the_space(supernet: Path, operators: Path) -> None:
    summary = json.loads((operators / "result.json").read_text())
    listed = enumeration.read_operators(operators)
    assert summary["unique_operators"] == len(listed) == sum(summary["operators"].values())
    assert (summary["variables"], summary["modifications"]) == (5, 10)
    assert (summary["codes"], summary["distinct"]) == (32, 24)


@pytest.mark.few("onnxruntime")
def test_every_operator_is_measured_once(operators: Path, device: AgentClient, tmp_path: Path) -> None:
    first = profile.run(QUICK, operators, device, tmp_path, Silent())
    listed = enumeration.read_operators(operators)
    assert first["measured_now"] == first["lut"]["ok"] == len(listed), first["lut"]["failures"]
    parts = {path: path.read_bytes() for path in tmp_path.rglob("part-*.parquet")}
    lut = Lut.open(tmp_path / profile.LUT_FOLDER, profile.device_key(device.capabilities()))
    for digest, feature in listed.items():
        entry = lut.get(digest)
        assert entry is not None
        assert entry.operator == feature.operator
        assert entry.p50_ms is not None
        assert entry.p90_ms is not None
        assert 0 < entry.p50_ms <= entry.p90_ms
        assert tailor_ir.OperatorFeature.from_json(json.loads(entry.feature)) == feature
    again = profile.run(QUICK, operators, device, tmp_path, Silent())
    assert again["measured_now"] == 0
    assert (again["known"], again["lut"]) == (len(listed), first["lut"])
    assert {path: path.read_bytes() for path in tmp_path.rglob("part-*.parquet")} == parts


def test_larger_convolutions_take_longer(operators: Path, device: AgentClient, tmp_path: Path) -> None:
    """A table that is right in order of magnitude: more work, more time."""
    listed = enumeration.read_operators(operators)
    small, *_, large = sorted((f for f in listed.values() if f.operator == "Conv"), key=lambda f: f.macs)
    enumeration.write_operators(tmp_path / enumeration.OPERATORS_FILE, {small: {}, large: {}})
    assert large.macs > 20 * small.macs
    profile.run(profile.Settings(method="alone"), tmp_path, device, tmp_path, Silent())
    lut = Lut.open(tmp_path / profile.LUT_FOLDER)
    slow, fast = lut.get(large.digest), lut.get(small.digest)
    assert slow is not None
    assert slow.p50_ms is not None
    assert fast is not None
    assert fast.p50_ms is not None
    assert slow.p50_ms > fast.p50_ms


@pytest.mark.few("onnxruntime")
@pytest.mark.parametrize("backend", ["ncnn", "onnxruntime"])
def test_an_operator_that_fails_is_an_entry_with_its_reason(operators: Path, backend: str, tmp_path: Path) -> None:
    listed = enumeration.read_operators(operators).values()
    feature = next(f for f in listed if f.operator == "Conv" and f.input_shapes[0][1] == 16)
    filters = 4096  # more than 1 MiB of weights
    parameters = tuple((filters, *shape[1:]) for shape in feature.parameter_shapes)
    steps = tuple((1, filters, *shape[2:]) for shape in feature.step_shapes)
    large = replace(feature, parameter_shapes=parameters, step_shapes=steps, output_shapes=steps[-1:])
    enumeration.write_operators(tmp_path / enumeration.OPERATORS_FILE, {feature: {}, large: {}})
    with local_agent(backend=backend, options=["--max-model-mib", "1"]) as client, client.lease():
        result = profile.run(QUICK, tmp_path, client, tmp_path, Silent())
        assert profile.run(QUICK, tmp_path, client, tmp_path, Silent())["measured_now"] == 0
    assert (result["lut"]["ok"], result["lut"]["failed"]) == (1, 1)
    (failure,) = result["lut"]["failures"]
    assert (failure["operator"], failure["digest"]) == ("Conv", large.digest)
    assert failure["reason"] is not None
    assert "1 MiB" in failure["reason"]


class KillingBar:
    """Kills the agents that this process started when some operators are measured."""

    def __init__(self, after: int) -> None:
        self.left = after

    def advance(self, count: int = 1) -> None:
        self.left -= count
        if self.left == 0:
            for child in psutil.Process().children():
                if child.pid not in self.others and "profiling_agents" in child.cmdline():
                    child.kill()

    def note(self, text: str) -> None:
        raise AssertionError(text)

    others: frozenset[int] = frozenset()


def test_what_was_measured_before_the_agent_died_is_kept(operators: Path, tmp_path: Path) -> None:
    settings = QUICK.model_copy(update={"batch_operators": 5, "flush_s": 3600.0})
    bar = KillingBar(after=7)
    bar.others = frozenset(child.pid for child in psutil.Process().children())
    todo = enumeration.read_operators(operators)
    with local_agent(backend="onnxruntime") as client, client.lease():
        lut = Lut.open(tmp_path, profile.device_key(client.capabilities()))
        with pytest.raises(AgentError):
            profile.fill(settings, lut, todo, client.capabilities(), client, bar)
    assert 7 <= len(Lut.open(tmp_path).entries()) < len(todo)


@pytest.mark.long
def test_a_killed_profile_goes_on_and_loses_only_what_was_in_flight(operators: Path, tmp_path: Path) -> None:
    settings = profile.Settings(
        method="alone", measure=MeasureSettings(time_cap_ms=20.0), batch_operators=10, flush_s=0.05
    )
    script = """
        import sys
        from pathlib import Path
        from profiling_agents.client import local_agent
        from tasks.base.progress import Silent
        from tasks.measuring import profile
        settings = profile.Settings.model_validate_json(sys.argv[3])
        with local_agent(backend="onnxruntime") as client, client.lease():
            profile.run(settings, Path(sys.argv[1]), client, Path(sys.argv[2]), Silent())
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(operators), str(tmp_path), settings.model_dump_json()]
    folder = tmp_path / profile.STORE_FOLDER
    with subprocess.Popen(command) as child:
        until = time.monotonic() + 300
        while len(list(folder.rglob("part-*"))) < 3 and time.monotonic() < until:
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    before = {path: path.read_bytes() for path in folder.rglob("part-*")}
    total = len(enumeration.read_operators(operators))
    with local_agent(backend="onnxruntime") as client, client.lease():
        known = len(LutStore(folder).open(profile.device_key(client.capabilities())).entries())
        assert 3 <= known < total
        result = profile.run(settings, operators, client, tmp_path, Silent())
    assert result["measured_now"] == total - known
    assert result["lut"]["ok"] == total
    assert all(path.read_bytes() == content for path, content in before.items())
