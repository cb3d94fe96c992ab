"""The look-up table is append-only, survives kills, and holds no latency that is none."""

import json
import math
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest

from tasks.errors import UserError
from tasks.lut import DeviceKey, Entry, Lut

DEVICE = DeviceKey(backend="ncnn", build="abc", precision="fp32", threads=1, fingerprint="f0")


def entry(digest: str, **changes) -> Entry:
    values = {"operator": "Conv", "feature": "{}", "state": "ok", "p50_ms": 0.5, "p90_ms": 0.6, "spread": 0.1}
    values |= {"n": 20, "noisy": False, "measured_at": "2026-01-01T00:00:00+00:00"}
    return Entry(digest=digest, **(values | changes))


def failed(digest: str) -> Entry:
    return entry(
        digest,
        state="failed",
        reason="ncnn has no layer for 'aten::det'",
        p50_ms=None,
        p90_ms=None,
        spread=None,
    )


def test_entries_are_read_back_as_written(tmp_path):
    lut = Lut.open(tmp_path, DEVICE)
    lut.append([entry("a", p50_ms=0.001234567), failed("b")])
    lut.append([entry("c", noisy=True)])
    again = Lut.open(tmp_path)
    assert set(again.entries()) == {entry("a", p50_ms=0.001234567), failed("b"), entry("c", noisy=True)}
    assert again.device == DEVICE
    assert list(again.missing(["a", "b", "c", "d"])) == ["d"]


def test_parts_are_only_added_never_changed(tmp_path):
    lut = Lut.open(tmp_path, DEVICE)
    lut.append([entry("a")])
    first = {path: path.read_bytes() for path in tmp_path.iterdir()}
    Lut.open(tmp_path, DEVICE).append([entry("a", p50_ms=0.7)])
    assert all(path.read_bytes() == content for path, content in first.items())
    assert len(list(tmp_path.iterdir())) == 2
    assert Lut.open(tmp_path).get("a").p50_ms == 0.7


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, None])
@pytest.mark.parametrize("name", ["p50_ms", "p90_ms"])
def test_a_latency_that_is_no_positive_number_is_refused(name, value):
    with pytest.raises(ValueError, match=f"LUT entry of Conv a: {name} = .*allowed: a number above 0"):
        entry("a", **{name: value})


@pytest.mark.parametrize("changes", [{"reason": None}, {"reason": ""}, {"p50_ms": 1.0}])
def test_a_failure_has_a_reason_and_no_time(changes):
    with pytest.raises(ValueError, match="a failed entry has a reason and no times"):
        replace(failed("a"), **changes)


def test_entries_of_another_build_or_device_are_not_mixed(tmp_path):
    Lut.open(tmp_path, DEVICE).append([entry("a")])
    other = replace(DEVICE, build="def")
    lut = Lut.open(tmp_path, other)
    assert lut.get("a") is None
    lut.append([entry("a", p50_ms=9.0)])
    assert Lut.open(tmp_path, DEVICE).get("a").p50_ms == 0.5
    with pytest.raises(UserError, match="holds 2 devices"):
        Lut.open(tmp_path)


def test_a_damaged_part_is_named(tmp_path):
    Lut.open(tmp_path, DEVICE).append([entry("a")])
    (part,) = tmp_path.iterdir()
    part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(UserError, match=f"{part.name}.*cannot be read.*measured again"):
        Lut.open(tmp_path, DEVICE)


def test_summary_names_every_failure(tmp_path):
    lut = Lut.open(tmp_path, DEVICE)
    lut.append([entry("a"), entry("b", noisy=True), failed("c")])
    summary = json.loads(json.dumps(lut.summary(), allow_nan=False))
    assert (summary["ok"], summary["failed"], summary["noisy"]) == (2, 1, 1)
    assert summary["failures"] == [{"operator": "Conv", "digest": "c", "reason": "ncnn has no layer for 'aten::det'"}]


def test_a_killed_writer_leaves_only_whole_parts(tmp_path):
    """SIGKILL in the middle of writing: what was reported as written is there, and everything can be read."""
    script = """
        import sys
        from pathlib import Path
        sys.path[:0] = sys.argv[2:]
        from test_lut import DEVICE, entry
        from tasks.lut import Lut
        lut = Lut.open(Path(sys.argv[1]), DEVICE)
        for number in range(100_000):
            lut.append([entry(f"{number}-{index}") for index in range(50)])
            print(number, flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path), *sys.path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout:
            if int(line) == 20:
                child.send_signal(signal.SIGKILL)
                break
        reported = [int(line), *(int(rest) for rest in child.stdout)]
    assert child.returncode == -signal.SIGKILL
    lut = Lut.open(tmp_path, DEVICE)
    assert {f"{number}-{index}" for number in range(max(reported) + 1) for index in range(50)} <= {
        one.digest for one in lut.entries()
    }
