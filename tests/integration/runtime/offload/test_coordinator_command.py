"""The coordinator from the command line: inputs of a file, and a service, over devices that are processes of their own."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import numpy as np
import pytest

from adaptive_runtime.cli import main
from adaptive_runtime.offload.split import COORDINATOR, PLANS_FILE, SplitSubNet
from profiling_agents.startup import TOKEN_VARIABLE
from tests.support.links.devices import Reference, ServingDevice, inputs, same, serving
from tests.support.links.plans import SEGMENTS, plans_of
from tests.support.runtime.service_process import COMMAND, INFER, body, served, soon

ENDED = "127.0.0.1:1"
"""Nobody listens there."""


@pytest.fixture
def folder(chain: Path, split: SplitSubNet, tmp_path: Path) -> Path:
    """As `autotailor partition partition.plans=FOLDER` writes it, for the devices a and b."""
    found = Path(shutil.copytree(chain, tmp_path / "plans"))
    (found / PLANS_FILE).write_text(plans_of(split, "a", "b").to_json())
    return found


def test_a_file_is_answered_and_parts_and_times_are_told(
    folder: Path,
    token: Path,
    split: SplitSubNet,
    reference: Reference,
    device: ServingDevice,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    xs = inputs(split, 3)
    np.save(tmp_path / "x.npy", np.concatenate(xs))
    words = ["split", str(folder), str(tmp_path / "x.npy"), "--device", f"a={device.url.removeprefix('tcp://')}"]
    words += ["--device-token", f"a={token}", "--deadline-ms", "60000", "--wait-s", "120"]
    words += ["--output", str(tmp_path / "y.npy"), "--json", str(tmp_path / "told.json")]
    assert main(words) == 0
    answers = np.load(tmp_path / "y.npy")
    assert all(same(y[None], reference(x)) for x, y in zip(xs, answers, strict=True))
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["plan"] == ["a"] * SEGMENTS
    assert told["plan_ms"] < told["coordinator_ms"]
    (one,) = told["devices"]
    assert (one["name"], one["state"]) == ("a", "in")
    assert one["link"]["up_mbps"] > 0
    for row in told["answers"]:
        (part,) = row["parts"]
        assert (part["device"], part["segments"]) == ("a", [0, SEGMENTS - 1])
        assert 0 < part["computed_ms"] < part["took_ms"] <= row["latency_ms"]
    shown = capsys.readouterr().out
    assert re.search(r"^a is in \(connected\): .* Mbit/s up, .* Mbit/s down, round trip .* ms$", shown, re.MULTILINE)
    assert "plan: a 0–3 (predicted" in shown
    assert len(re.findall(r"a: segments 0–3, .* ms, of which computing .* ms, the way .* ms", shown)) == len(xs)


def test_coordinator_stands_in_for_a_device_that_is_not_reached(
    folder: Path, token: Path, split: SplitSubNet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", inputs(split, 1)[0][0])
    words = ["split", str(folder), str(tmp_path / "x.npy"), "--device", f"a={ENDED}", "--device-token", f"a={token}"]
    assert main([*words, "--wait-s", "0.5", "--deadline-ms", "60000"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^a is out \(", shown)
    assert "plan: coordinator 0–3" in shown
    assert "  coordinator: segments 0–3, " in shown


@pytest.mark.parametrize(
    ("words", "line"),
    {
        "no device": (["split", "{folder}", "{x}"], "required: --device"),
        "no address": (["split", "{folder}", "{x}", "--device", "a"], "invalid NAME=VALUE value: 'a'"),
        "another device": (
            ["split", "{folder}", "{x}", "--device", "board=h:1", "--device-token", "board={token}"],
            "device 'board': no plan of the folder names it; allowed: a, b",
        ),
        "no port": (
            ["split", "{folder}", "{x}", "--device", "a=host", "--device-token", "a={token}"],
            "'tcp://host'; allowed: tcp://HOST:PORT, tls://HOST:PORT",
        ),
        "twice": (["split", "{folder}", "{x}", "--device", "a=h:1", "--device", "a=h:2"], "--device a: given twice"),
        "no token": (
            ["split", "{folder}", "{x}", "--device", "a=h:1"],
            "device 'a': has no token; give --device-token a=F",
        ),
        "token of nobody": (
            ["split", "{folder}", "{x}", "--device", "a=h:1", "--device-token", "b={token}"],
            "--device-token b: no --device has this name; allowed: a",
        ),
        "token lacks": (
            ["split", "{folder}", "{x}", "--device", "a=h:1", "--device-token", "a={token}-other"],
            "--device-token a '{token}-other': cannot be read",
        ),
        "no folder": (["split", "{folder}-other", "{x}", "--device", "a=h:1"], "segments.json: cannot be read"),
        "foreign plans": (["split", "{foreign}", "{x}", "--device", "a=h:1"], "has plans for segments 000000000000"),
        "no input": (["split", "{folder}", "{x}-other", "--device", "a=h:1"], "x.npy-other: cannot be read as .npy"),
        "another input": (
            ["split", "{folder}", "{wide}", "--device", "a=h:1"],
            "has the shape [1, 3, 16, 17]; allowed: [3, 16, 16] or [N, 3, 16, 16]",
        ),
        "no floats": (["split", "{folder}", "{bytes}", "--device", "a=h:1"], "is no array of float32; allowed: a .npy"),
        "for bundles": (
            ["serve", "{folder}", "--port", "0", "--device", "a=h:1", "--device-token", "a={token}", "--adapts"],
            "--adapts: is of bundles; leave it out with --device",
        ),
        "served without devices": (["serve", "{folder}", "--port", "0"], "bundle.json: cannot be read"),
        "served for another device": (
            ["serve", "{folder}", "--port", "0", "--device", "c=h:1", "--device-token", "c={token}"],
            "device 'c': no plan of the folder names it; allowed: a, b",
        ),
    }.values(),
)
def test_bad_input_is_one_line(
    folder: Path,
    token: Path,
    split: SplitSubNet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    line: str,
) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    foreign = Path(shutil.copytree(folder, tmp_path / "foreign"))
    (foreign / PLANS_FILE).write_text(plans_of(split, "a").model_copy(update={"digest": "0" * 64}).to_json())
    shape = split.subnet.shapes[split.subnet.input]
    np.save(tmp_path / "x.npy", np.zeros(shape, np.float32))
    np.save(tmp_path / "wide.npy", np.zeros((*shape[:-1], shape[-1] + 1), np.float32))
    np.save(tmp_path / "bytes.npy", np.zeros(shape, np.uint8))
    files = {name: tmp_path / f"{name}.npy" for name in ("x", "wide", "bytes")}
    places = {"folder": folder, "token": token, "foreign": foreign, **files}
    assert main([word.format(**places) for word in words]) == 2
    told = capsys.readouterr().err
    assert line.format(**places) in told
    assert told.startswith("autotailor-runtime")
    assert told.count("\n") == 1


@pytest.mark.long
def test_it_is_served_and_its_plan_follows_devices_that_go(
    folder: Path, token: Path, split: SplitSubNet, reference: Reference, tmp_path: Path
) -> None:
    x = inputs(split, 2)
    batch = np.concatenate(x)
    with serving() as own:
        words = ("--device", f"a={own.url}", "--device-token", f"a={token}", "--deadline-ms", "60000")
        with served(folder, tmp_path / "log", *words) as coordinator:
            assert soon(lambda: coordinator.state()["split"]["devices"][0]["state"] == "in")

            def ask() -> tuple[np.ndarray, str]:
                told = coordinator.http.post(INFER, **body(batch)).raise_for_status().json()
                logits = next(one for one in told["outputs"] if one["name"] == "logits")
                return np.asarray(logits["data"], np.float32).reshape(logits["shape"]), told["parameters"]["devices"]

            assert soon(lambda: ask()[1] == "a")
            expected = np.concatenate([reference(one) for one in x])
            assert same(ask()[0], expected)
            state = coordinator.state()
            assert state["split"]["plan"] == ["a"] * SEGMENTS
            assert state["split"]["plan_ms"] < state["split"]["coordinator_ms"]
            assert {"a 0–3", "a"} <= {one["name"] for one in state["decisions"]}
            scraped = metrics(coordinator.http)
            assert scraped['autotailor_placed_segments{device="a"}'] == SEGMENTS
            assert scraped['autotailor_device_in{device="a"}'] == 1
            assert scraped['autotailor_link_up_mbps{device="a"}'] > 0
            own.process.kill()
            assert same(ask()[0], expected)
            assert soon(lambda: ask()[1] == COORDINATOR)
            scraped = metrics(coordinator.http)
            assert scraped['autotailor_device_in{device="a"}'] == 0
            assert scraped['autotailor_placed_segments{device="coordinator"}'] == SEGMENTS
            assert scraped["autotailor_plan_changes_total"] >= 2
            told = {one["step"]: one for one in coordinator.state()["decisions"]}
            assert {"plan", "in", "out"} <= told.keys()


def metrics(http: httpx.Client) -> dict[str, float]:
    """Values by name and labels."""
    lines = http.get("/metrics").raise_for_status().text.splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def test_the_help_tells_of_devices() -> None:
    done = subprocess.run([*COMMAND, "split", "--help"], capture_output=True, text=True, check=True)
    assert "--device-token NAME=FILE" in done.stdout
