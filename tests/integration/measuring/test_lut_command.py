"""`autotailor lut`: tables that two runtimes have measured are shown, compared, exported, merged and compacted."""

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from flows.cli import main
from flows.cli.words import LUT_ACTIONS, LUT_OPTIONS
from profiling_agents.client import MeasureSettings, local_agent
from tasks.base.progress import Silent
from tasks.measuring import operators as enumeration
from tasks.measuring import profile
from tasks.measuring.lut import Entry, Lut, LutStore
from tasks.measuring.lut import table as lut_parts
from tests.support.tables.lut_entries import DEVICE, LATE, entry, failed

MEASURE = MeasureSettings(time_cap_ms=5.0, warmup_ms=0.5, min_blocks=1, patience=0.0)


@pytest.fixture(scope="module")
def measured(supernet: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that both runtimes have filled; ncnn has all operators, onnxruntime two thirds."""
    folder = tmp_path_factory.mktemp("measured")
    enumeration.run(supernet, folder, Silent())
    features = list(enumeration.read_operators(folder).values())
    few = folder / "few"
    few.mkdir()
    enumeration.write_operators(
        few / enumeration.OPERATORS_FILE, {one: {} for one in features[: 2 * len(features) // 3]}
    )
    settings = profile.Settings(method="alone", measure=MEASURE, store=folder / "luts", flush_s=0.1)
    for backend, operators in (("ncnn", folder), ("onnxruntime", few)):
        with local_agent(backend=backend) as client, client.lease():
            profile.run(settings, operators, client, folder / backend, Silent())
    return folder / "luts"


@pytest.fixture
def store(measured: Path, tmp_path: Path) -> Path:
    """A copy of it in an output folder of this test."""
    shutil.copytree(measured, tmp_path / "out" / "luts")
    return tmp_path / "out" / "luts"


def lut(store: Path, *words: str) -> Any:
    """The JSON of a command that succeeds."""
    file = store.parent / "result.json"
    assert main(["lut", *words, "--json", str(file)]) == 0
    return json.loads(file.read_text())


def table(store: Path, backend: str) -> Lut:
    return Lut.open(next(store.glob(f"{backend}-*")))


def times_ms(measured: Entry) -> tuple[float, float]:
    """p50 and p90."""
    assert measured.p50_ms is not None
    assert measured.p90_ms is not None
    return measured.p50_ms, measured.p90_ms


def test_show_counts_what_is_there_by_device_and_operator(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = lut(store, "show", f"output_dir={store.parent}")
    assert [one["backend"] for one in result["tables"]] == ["ncnn", "onnxruntime"]
    for one in result["tables"]:
        known = table(store, one["backend"]).entries()
        assert one["entries"] == one["ok"] == len(known)
        assert one["noisy"] == sum(entry.noisy for entry in known)
        assert sum(counts["entries"] for counts in one["operators"].values()) == len(known)
        assert one["batches"] == [1]
        assert one["oldest"] == min(entry.measured_at for entry in known) <= one["newest"]
        costs_ms = [entry.cost_ms for entry in known if entry.cost_ms is not None]
        assert len(costs_ms) == len(known)
        assert one["cost_s"] == pytest.approx(sum(costs_ms) / 1e3, abs=1e-3)
        assert one["device"][:12] in capsys.readouterr().out or one["backend"] == "onnxruntime"


def test_show_takes_filters(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = lut(store, "show", f"store={store}", "devices=[ncnn]", "operators=[Conv,Linear]", "methods=[alone]")
    (one,) = result["tables"]
    known = [entry for entry in table(store, "ncnn").entries() if entry.operator in ("Conv", "Linear")]
    assert (one["backend"], one["entries"]) == ("ncnn", len(known))
    assert set(one["operators"]) == {"Conv", "Linear"}
    assert "median spread" in capsys.readouterr().out


def test_show_names_failures_and_entries_that_are_not_valid(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = table(store, "ncnn")
    first, second, *_ = known.entries()
    known.append([failed(first.digest, measured_at=second.measured_at.replace("20", "21", 1))])
    row = next(row for row in LutStore(store).rows() if row["digest"] == second.digest and row["backend"] == "ncnn")
    lut_parts.write(known.folder, [row | {"p50_ms": -1.0, "measured_at": "2199-01-01T00:00:00+00:00"}])
    (one,) = lut(store, "show", f"store={store}", "devices=[ncnn]")["tables"]
    assert one["failures"] == [{"operator": "Conv", "digest": first.digest, "reason": failed("x").reason}]
    assert one["invalid"] == [
        f"LUT entry of {second.operator} {second.digest}: p50_ms = -1.0; allowed: a number above 0"
    ]
    shown = capsys.readouterr().out
    assert f"failed: Conv {first.digest}" in shown
    assert "not valid: LUT entry of" in shown


def test_diff_gives_ratios_by_operator_and_what_only_one_has(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = lut(store, "diff", "ncnn", "onnxruntime", f"store={store}")
    one, other = table(store, "ncnn"), table(store, "onnxruntime")
    pairs = [(entry, found) for entry in one.entries() if (found := other.get(entry.digest))]
    assert result["all"]["shared"] == len(pairs) == len(other.entries())
    ratios = [times_ms(b)[0] / times_ms(a)[0] for a, b in pairs if a.operator == "Conv"]
    conv = result["operators"]["Conv"]
    assert conv["median_ratio"] == pytest.approx(median(ratios), rel=1e-12)
    assert (conv["lowest_ratio"], conv["highest_ratio"]) == pytest.approx((min(ratios), max(ratios)), rel=1e-12)
    assert conv["worst"]["ratio"] in (conv["lowest_ratio"], conv["highest_ratio"])
    assert sum(result["only_first"].values()) == len(one.entries()) - len(pairs)
    assert result["only_second"] == {}
    assert result["devices"] == [one.device.name, other.device.name]
    shown = capsys.readouterr().out
    assert f"{other.device.name} relative to {one.device.name}" in shown
    assert f"only {one.device.name} has: " in shown.replace("\n", " ")


def test_diff_of_folders_compares_one_device_then_and_now(store: Path, tmp_path: Path) -> None:
    now = table(store, "ncnn")
    slower = LutStore(tmp_path / "slower").open(now.device)
    slower.append([replace(one, p50_ms=2 * times_ms(one)[0], p90_ms=2 * times_ms(one)[1]) for one in now.entries()])
    result = lut(store, "diff", str(now.folder), str(slower.folder))
    assert result["all"]["lowest_ratio"] == pytest.approx(2.0, rel=1e-12)
    assert result["all"]["highest_ratio"] == pytest.approx(2.0, rel=1e-12)


def test_diff_compares_like_with_like(tmp_path: Path) -> None:
    for name, factor in (("one", 1.0), ("two", 3.0)):
        device = replace(DEVICE, fingerprint=name)
        rows = [
            entry("a", p50_ms=1.0 * factor),
            entry("a", p50_ms=5.0 * factor**2, method="in situ"),
            entry("b", p50_ms=1.0 * factor),
            failed("b", measured_at=LATE) if name == "two" else entry("b", settings="{}"),
        ]
        LutStore(tmp_path / name).open(device).append(rows)
    result = lut(tmp_path / "one", "diff", str(tmp_path / "one"), str(tmp_path / "two"))
    assert (result["all"]["lowest_ratio"], result["all"]["highest_ratio"]) == pytest.approx((3.0, 9.0), rel=1e-12)
    assert result["failed_second"] == {"Conv": 1}
    alone = lut(tmp_path / "one", "diff", str(tmp_path / "one"), str(tmp_path / "two"), "methods=[alone]")["all"]
    assert alone["median_ratio"] == pytest.approx(3.0, rel=1e-12)


def test_export_writes_every_entry_with_its_columns(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    assert lut(store, "export", str(file), f"store={store}", "operators=[Conv]")["entries"] > 0
    with file.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    known = {(e.digest, name): e for name in ("ncnn", "onnxruntime") for e in table(store, name).entries()}
    assert len(rows) == sum(one.operator == "Conv" for one in known.values())
    for row in rows:
        one = known[row["digest"], row["backend"]]
        assert (float(row["p50_ms"]), int(row["n"]), row["method"]) == (one.p50_ms, one.n, "alone")
        assert json.loads(row["feature"]) == json.loads(one.feature)


def test_merge_takes_a_stages_table_into_another_store(store: Path, tmp_path: Path) -> None:
    known = table(store, "onnxruntime")
    wanted = [one.digest for one in known.entries()][:5]
    known.snapshot(tmp_path / "stage", wanted)
    added = lut(store, "merge", str(tmp_path / "stage"), str(tmp_path / "boards"))
    assert added == {"store": str(tmp_path / "boards"), "added": {known.device.name: 5}}
    both = lut(store, "merge", str(tmp_path / "stage"), str(store), str(tmp_path / "boards"))
    assert both["added"] == {
        known.device.name: len(known.entries()) - 5,
        **{name: len(table(store, "ncnn").entries()) for name in both["added"] if name.startswith("ncnn")},
    }
    assert lut(store, "merge", str(store), str(tmp_path / "boards"))["added"] == {}
    assert set(Lut.open(tmp_path / "boards" / known.device.name).entries()) == set(known.entries())


def test_compact_leaves_one_part_for_each_device_and_every_entry(store: Path) -> None:
    before = {name: set(table(store, name).entries()) for name in ("ncnn", "onnxruntime")}
    assert max(len(list(folder.iterdir())) for folder in store.iterdir()) > 1
    result = lut(store, "compact", f"store={store}")
    assert {one["device"]: one["entries"] for one in result["tables"]} == {
        table(store, name).device.name: len(entries) for name, entries in before.items()
    }
    assert [len(list(folder.iterdir())) for folder in store.iterdir()] == [1, 1]
    assert {name: set(table(store, name).entries()) for name in before} == before


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["lut"], "lut: nothing to do; allowed: show, diff DEVICE DEVICE, export"),
        (["lut", "shwo"], "lut: 'shwo' is unknown; .*did you mean 'show'?"),
        (["lut", "show", "ncnn"], "lut show: got 1 names; write autotailor lut show$"),
        (["lut", "diff", "ncnn"], "lut diff: got 1 names; write autotailor lut diff DEVICE DEVICE"),
        (["lut", "diff", "ncnn", "tflite"], r"lut diff: 'tflite' stands for 0 tables; allowed: ncnn-.*, onnxruntime-"),
        (["lut", "diff", "fp32", "ncnn"], "lut diff: 'fp32' stands for 2 tables; allowed: .*; name one"),
        (
            ["lut", "diff", "ncnn", "ncnn", "devices=[x]"],
            "option 'devices': is not one of 'lut diff'; allowed: output_dir",
        ),
        (["lut", "show", "operators=[Konv]"], "operators: 'Konv' is in no table; allowed: .*Conv"),
        (["lut", "show", "devices=[tflite]"], "devices: 'tflite' is in no table; allowed: ncnn-"),
        (["lut", "show", "methods=[guessed]"], "methods.0: got 'guessed'; allowed: 'alone' or 'in situ'"),
        (["lut", "show", "methods=[in situ]"], "look-up tables: no entry is of these devices, operators and methods"),
        (["lut", "show", "epochs=3"], "option 'epochs': is not one of 'lut show'; allowed: output_dir, store, devices"),
        (["lut", "show", "store=nowhere"], "LUT store 'nowhere': holds no look-up table; autotailor profile"),
        (["lut", "show", "--dry-run"], "--dry-run: is not a flag of 'lut'"),
        (["lut", "show", "--multirun"], "--multirun: is not a flag of 'lut'"),
        (["lut", "show", "--view"], "--view: is not a flag of 'lut'"),
        (["lut", "show", "--json", "/nowhere/x.json"], "--json: folder '/nowhere' does not exist"),
        (["lut", "export", "table.txt"], "lut export: got 'table.txt'; allowed: a file that ends in .csv"),
        (["lut", "export", "/nowhere/table.csv"], "lut export: '/nowhere/table.csv' cannot be written"),
        (["lut", "merge", "outputs/luts"], "lut merge: got 1 names; write autotailor lut merge SRC… DST"),
        (["lut", "merge", "nowhere", "boards"], "LUT store 'nowhere': holds no look-up table"),
        (["lut", "merge", "outputs/luts", "outputs/../outputs/luts"], "lut merge: .* is a source and where it goes"),
        (["lut", "compact", "store=nowhere"], "LUT store 'nowhere': holds no look-up table"),
    ],
)
def test_bad_input_is_one_line(
    measured: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    words: list[str],
    line: str,
) -> None:
    (tmp_path / "outputs").mkdir()
    shutil.copytree(measured, tmp_path / "outputs" / "luts")
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert re.search(line, lines[0].removeprefix("autotailor: "))
    assert not (tmp_path / "boards").exists()


def test_help_shows_every_action(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lut", "--help"]) == 0
    shown = capsys.readouterr().out
    assert {form.split()[0] for form in LUT_ACTIONS} == set(LUT_OPTIONS)
    assert all(f"lut {form} " in shown and text in shown for form, text in LUT_ACTIONS.items())
