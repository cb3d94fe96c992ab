"""A search on the device: it ends, goes on after it was killed, writes no image, and what it finds serves as torch answers."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import adaptive_runtime
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.bundles import FOUND_FILE, FoundSubNets, OpenBundle
from adaptive_runtime.cli import main
from adaptive_runtime.local_search import (
    BackgroundSearch,
    OwnEvaluation,
    OwnImages,
    SegmentSessions,
    known_latencies,
    search,
)
from adaptive_runtime.local_search.evaluation import STATE_FILE, SearchState
from tests.support.runtime.bundled import write_plain_bundle
from tests.support.runtime.searching import SearchingDevice, searching_device

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchingDevice]:
    folder = tmp_path_factory.mktemp("search")
    yield searching_device(folder)
    assert not list(folder.glob("**/*.tmp"))


def found_in(folder: Path) -> list[tuple[Any, ...]]:
    """What a search has found, without what is timed anew."""
    found = FoundSubNets.read(folder)
    return [(one.digest, one.config, one.accuracy, one.predicted_ms) for one in found.subnets]


def test_found_subnets_serve_and_answer_as_torch(device: SearchingDevice, tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    search(device.bundle, device.images, tmp_path / "out", device.settings(), events.append)
    generations = [event for event in events if event["event"] == "generation"]
    assert 1 <= len(generations) <= 3
    assert generations[-1]["evaluated"] >= 4
    assert 0 < generations[-1]["saved"] < 1
    x = np.load(device.images)["x"][:3]
    with adaptive_runtime.load(device.bundle.folder, also=tmp_path / "out", prepares=False) as model:
        own = [one for one in model.subnets if one.digest.startswith("found-")]
        assert own
        assert {"device"} == {next(iter(one.accuracy)) for one in model.subnets}
        for one in model.subnets:
            model.use(one.digest)
            answer = model.infer(x)
            assert answer.subnet == one.digest
            expected = device.net.build(one.config)(torch.from_numpy(x)).detach().numpy()
            assert np.abs(answer.logits - expected).max() <= TOLERANCE * np.abs(expected).max()
    classes = np.load(device.images)
    best = FoundSubNets.read(tmp_path / "out").subnets[0]
    logits = device.net.build(best.config)(torch.from_numpy(classes["x"])).detach().numpy()
    assert best.accuracy["device"] == pytest.approx((logits.argmax(1) == classes["y"]).mean(), abs=1e-9)
    assert best.latency is not None


def test_prepared_files_of_found_subnets_serve_as_well(device: SearchingDevice, tmp_path: Path) -> None:
    search(device.bundle, device.images, tmp_path / "out", device.settings(generations=1), lambda event: None)
    x = np.load(device.images)["x"][:2]
    with adaptive_runtime.load(device.bundle.folder, also=tmp_path / "out", cache=tmp_path / "cache") as model:
        found = next(one for one in model.subnets if one.digest.startswith("found-"))
        model.use(found.digest)
        logits = model.infer(x).logits
    expected = device.net.build(found.config)(torch.from_numpy(x)).detach().numpy()
    assert np.abs(logits - expected).max() <= TOLERANCE * np.abs(expected).max()


@pytest.mark.long
def test_a_search_that_was_killed_goes_on_to_the_same_result(device: SearchingDevice, tmp_path: Path) -> None:
    settings = device.settings(generations=4)
    whole, broken = device.folder(tmp_path, "whole"), device.folder(tmp_path, "broken")
    search(device.bundle, device.images, whole, settings, lambda event: None)
    seen: list[dict[str, Any]] = []
    with BackgroundSearch(device.bundle.folder, device.images, broken, settings, seen.append, niceness=0) as running:
        until_s = time.monotonic() + 120
        while not any(event["event"] == "generation" for event in seen) and time.monotonic() < until_s:
            time.sleep(0.005)
        running.stop()
    (broken / FOUND_FILE).unlink(missing_ok=True)
    before = SearchState.model_validate_json((broken / STATE_FILE).read_text()).generation
    assert before >= 1
    events: list[dict[str, Any]] = []
    with BackgroundSearch(device.bundle.folder, device.images, broken, settings, events.append, niceness=0) as running:
        assert running.wait(120) == broken
    later = [event["number"] for event in events if event["event"] == "generation"]
    assert all(number > before for number in later)
    assert found_in(broken) == found_in(whole)
    states = [json.loads((folder / STATE_FILE).read_text())["evaluated"] for folder in (whole, broken)]
    assert states[0] == states[1]


def test_a_search_runs_at_low_priority_and_can_be_paused(device: SearchingDevice, tmp_path: Path) -> None:
    folder, seen = device.folder(tmp_path, "paused"), list[dict[str, Any]]()
    arrays = np.load(device.images)
    with BackgroundSearch(
        device.bundle.folder, (arrays["x"], None), folder, device.settings(), seen.append, niceness=3
    ) as running:
        pid = running.pid
        until_s = time.monotonic() + 120
        while not seen and time.monotonic() < until_s:
            time.sleep(0.005)
        running.pause()
        assert os.getpriority(os.PRIO_PROCESS, pid) == min(19, 3 + os.getpriority(os.PRIO_PROCESS, 0))
        while state_of(pid) != "T" and time.monotonic() < until_s:
            time.sleep(0.005)
        assert state_of(pid) == "T"
        assert running.is_running
        with pytest.raises(TimeoutError, match="still runs"):
            running.wait(0.05)
        running.go_on()
        running.wait(120)
    found = FoundSubNets.read(folder)
    assert found.labels == "largest"
    largest = device.net.space.digest(device.net.max_config)
    assert found.accuracies[largest] == 1.0


def state_of(pid: int) -> str:
    """The state of a process, as the system calls it; T: stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_no_image_and_no_label_is_written(device: SearchingDevice, tmp_path: Path) -> None:
    marked = np.load(device.images)["x"].copy()
    labels = np.load(device.images)["y"]
    marked[:, 0, 0, :8] = np.frombuffer(b"a private image, not to be seen!", np.float32)
    folder, settings = device.folder(tmp_path, "private"), device.settings(generations=1)
    with BackgroundSearch(device.bundle.folder, (marked, labels), folder, settings, niceness=0) as running:
        running.wait(120)
    names = {file.name for file in folder.iterdir()}
    assert names == {"latencies.json", STATE_FILE, FOUND_FILE}
    for name in names:
        content = (folder / name).read_bytes()
        assert b"a private image" not in content
        assert json.dumps(labels.tolist())[1:-1].encode() not in content.replace(b"\n", b" ")
        assert len(content) < 40_000
    fields = set(SearchState.model_fields) - {"evaluated", "largest"}
    state = json.loads((folder / STATE_FILE).read_text())
    assert {name for one in (state["largest"], *state["evaluated"]) for name in one} == {"path", "accuracy", "loss"}
    assert all(isinstance(state[name], int | float | str) for name in fields)


@pytest.mark.long
def test_little_memory_changes_no_answer(device: SearchingDevice, tmp_path: Path) -> None:
    blocks = device.bundle.blocks()
    data = OwnImages.read(device.images, (3, 16, 16), 5)
    ms_E = known_latencies(device.bundle, blocks, device.latencies).ms_E
    paths = [blocks.largest, *((n, *_after(blocks, n)) for n, one in enumerate(blocks.segments) if not one.start)]
    found = []
    for cap_mib, kept_mib in ((None, 64.0), (0.01, 0.001)):
        sessions = SegmentSessions(device.bundle, blocks, cap_mib)
        evaluation = OwnEvaluation(sessions, blocks, data, ms_E, kept_mib)
        found.append(evaluation.scores(paths))
        loads = sessions.loads
        sessions.free()
    assert found[0] == found[1]
    assert loads > len(blocks.segments)


def test_answers_are_those_of_torch(device: SearchingDevice) -> None:
    blocks = device.bundle.blocks()
    data = OwnImages.read(device.images, (3, 16, 16), 5)
    ms_E = known_latencies(device.bundle, blocks, device.latencies).ms_E
    paths = [blocks.largest, *((n, *_after(blocks, n)) for n, one in enumerate(blocks.segments) if not one.start)]
    found = OwnEvaluation(SegmentSessions(device.bundle, blocks), blocks, data, ms_E).scores(paths)
    for path, score in zip(paths, found, strict=True):
        logits = device.net.build(blocks.config_of(path))(torch.from_numpy(data.images)).detach()
        labels = torch.from_numpy(data.labels)
        assert score.accuracy == pytest.approx(float((logits.argmax(1) == labels).double().mean()), abs=1e-9)
        loss = torch.nn.functional.cross_entropy(logits.double(), labels)
        assert score.loss == pytest.approx(float(loss), rel=1e-4)


def _after(blocks: Any, number: int) -> list[int]:
    """The network's own layers behind a segment."""
    return [one for one in blocks.largest if blocks.segments[one].start >= blocks.segments[number].end]


def test_results_of_another_bundle_are_refused(device: SearchingDevice, tmp_path: Path) -> None:
    search(device.bundle, device.images, tmp_path / "out", device.settings(generations=1), lambda event: None)
    write_plain_bundle(device.net, [device.net.max_config], tmp_path / "other", blocks=True)
    with pytest.raises(
        AdaptiveError, match=r"found\.json: was found for another bundle; search again: autotailor-runt"
    ):
        adaptive_runtime.load(tmp_path / "other", also=tmp_path / "out")
    with pytest.raises(AdaptiveError, match=r"found\.json: cannot be read"):
        adaptive_runtime.load(tmp_path / "other", also=tmp_path / "none")


def test_the_command_line_searches_and_tells(
    device: SearchingDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = device.folder(tmp_path, "found")
    words = ["search", str(device.bundle.folder), "--images", str(device.images), "--budget-ms", f"{device.budget_ms}"]
    words += [
        "--folder",
        str(folder),
        "--niceness",
        "0",
        "--population",
        "3",
        "--generations",
        "1",
        "--json",
        str(tmp_path / "told.json"),
    ]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "generation 1 of 1: " in told
    assert f"also='{folder}'" in told
    events = json.loads((tmp_path / "told.json").read_text())
    assert [event["event"] for event in events] == ["latencies", "generation", "found"]


@pytest.mark.parametrize(
    ("words", "line"),
    {
        "no images": (["--images", "{tmp}/none.npz", "--budget-ms", "9"], r"none.npz: cannot be read"),
        "another shape": (
            ["--images", "{tmp}/wide.npz", "--budget-ms", "9"],
            "x is float32 (2, 3, 8, 8); allowed: flo",
        ),
        "labels beyond": (["--images", "{tmp}/beyond.npz", "--budget-ms", "9"], "y from 7 to 7; allowed: 0 to 4"),
        "no time": (["--images", "{own}", "--budget-ms", "0"], "budget_ms: Input should be greater than 0"),
        "too little time": (["--images", "{own}", "--budget-ms", "1e-6"], "the fastest SubNet takes"),
    }.values(),
)
def test_bad_input_of_a_search_is_one_line(
    device: SearchingDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], line: str
) -> None:
    np.savez(tmp_path / "wide.npz", x=np.zeros((2, 3, 8, 8), np.float32))
    np.savez(tmp_path / "beyond.npz", x=np.zeros((2, 3, 16, 16), np.float32), y=np.array([7, 7]))
    folder = device.folder(tmp_path, "found")
    own = [word.format(tmp=tmp_path, own=device.images) for word in words]
    assert main(["search", str(device.bundle.folder), "--folder", str(folder), "--niceness", "0", *own]) == 2
    told = capsys.readouterr().err
    assert line in told
    assert told.count("\n") == 1


def test_a_bundle_without_segments_is_refused(device: SearchingDevice, tmp_path: Path) -> None:
    write_plain_bundle(device.net, [device.net.max_config], tmp_path / "plain")
    with pytest.raises(
        AdaptiveError, match=r"has no segments of blocks; export a SuperNet with alternatives by export\."
    ):
        search(OpenBundle.open(tmp_path / "plain"), device.images, tmp_path, device.settings(), lambda event: None)
