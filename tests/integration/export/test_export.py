"""Exported files compute what torch computes, in both formats, and a second run does nothing twice."""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import psutil
import pytest
import torch

import tailor_ir
from profiling_agents.client import AgentClient, AgentError, MeasureSettings, local_agent
from profiling_agents.messages import Measurement
from tasks import export
from tasks.base.artifacts import SubNetStore, Workspace, read_lines
from tasks.base.errors import UserError
from tasks.base.progress import Bar, Silent
from tasks.base.schemas.winners import Candidate, Candidates
from tasks.data import Batch, Dataset, DataSettings, load_splits
from tasks.data.samples import Size
from tasks.evaluation.subnets import Accuracy, EvaluationData, statistics_of, tallied
from tasks.evaluation.subnets.record import CONFUSIONS_FILE, read_confusions
from tests.support.fronts import predicted, write_front

QUICK = export.Settings(measure=MeasureSettings(time_cap_ms=10.0, warmup_ms=1.0, min_blocks=2, patience=0.0))
HUGE_MS, TINY_MS = 1e6, 1e-6
IMAGES = 100


@pytest.fixture(scope="module")
def data() -> dict[str, EvaluationData]:
    splits = load_splits(DataSettings(kind="digits"))
    return {
        name: EvaluationData(splits[name], splits["train"], recalibration_images=64, limit=IMAGES)
        for name in ("validation", "test")
    }


class Counted(EvaluationData):
    """Keeps how many images each batch has that is read."""

    def __init__(self, dataset: Dataset, train: Dataset, **options: Any) -> None:
        super().__init__(dataset, train, **options)
        self.read: list[int] = []

    def batches(self, size: Size) -> Iterator[Batch]:
        for x_BCHW, target in super().batches(size):
            self.read.append(len(target))
            yield x_BCHW, target


@pytest.fixture(scope="module")
def counted() -> Counted:
    """The test images of `exported`."""
    splits = load_splits(DataSettings(kind="digits"))
    return Counted(splits["test"], splits["train"], recalibration_images=64, limit=IMAGES)


@pytest.fixture(scope="module")
def search(supernet: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A front of two SubNets, one of them within two budgets, and a baseline."""
    net = tailor_ir.load(supernet)
    chosen = [(net.max_config, HUGE_MS), (net.min_config, HUGE_MS), (net.min_config, TINY_MS)]
    folder = tmp_path_factory.mktemp("search")
    write_front(folder, net, chosen, [net.min_config])
    return folder


@pytest.fixture(scope="module")
def exported(
    supernet: Path,
    search: Path,
    data: dict[str, EvaluationData],
    counted: Counted,
    device: AgentClient,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, Mapping[str, Any]]:
    """The folder of the export stage and what it returned, for each device."""
    out, images = tmp_path_factory.mktemp("export"), {**data, "test": counted}
    store = SubNetStore(out / "subnets")
    counted.read.clear()  # the other device's
    return out, export.run(
        export.ExportRequest(settings=QUICK, supernet=supernet, search=search, data=images),
        device,
        Workspace(out=out, progress=Silent(), store=store),
    )


def test_exports_agree_with_torch_and_are_measured(
    exported: tuple[Path, Mapping[str, Any]], device: AgentClient
) -> None:
    out, result = exported
    assert json.loads((out / export.EXPORTS_FILE).read_text()) == result
    assert [row["within_budget"] for row in result["winners"]] == [True, True, False]
    assert len(result["subnets"]) == 2
    native = device.capabilities().formats[0]
    for card in result["subnets"]:
        assert card["latency"]["p50_ms"] > 0
        for name, file in card["files"].items():
            assert file["state"] == "ok", file
            assert file["relative_difference"] <= 1e-4
            assert file["on_device"] == (name == native)
            for path, digest in file["sha256"].items():
                assert hashlib.sha256((out / path).read_bytes()).hexdigest() == digest
        assert json.loads((out / f"{card['digest']}.json").read_text()) == card
        text = (out / f"{card['digest']}.md").read_text()
        assert all(word in text for word in (card["digest"], card["device"]["fingerprint"], "licence", *file["sha256"]))


def test_confusions_of_winners_come_from_the_pass_over_the_test_split_that_their_accuracies_take(
    exported: tuple[Path, Mapping[str, Any]], counted: Counted, supernet: Path, data: dict[str, EvaluationData]
) -> None:
    (out, result), net = exported, tailor_ir.load(supernet)
    known = read_confusions(out / CONFUSIONS_FILE)
    for card in result["subnets"]:
        module = net.build(card["config"], statistics_of(net, card["config"], data["test"])).eval()
        expected_KK = tallied(module, data["test"].batches(net.input_size(card["config"]))).confusion_KK
        assert expected_KK is not None
        assert known[card["digest"]]["confusion"] == expected_KK.tolist()
        assert expected_KK.trace() / IMAGES == card["accuracy"]["test"]
    assert IMAGES <= sum(counted.read) <= IMAGES * len(result["subnets"])


def test_a_baseline_that_was_measured_as_a_winner_is_not_measured_again(
    exported: tuple[Path, Mapping[str, Any]],
) -> None:
    out, result = exported
    (baseline,) = result["baseline"]
    winners, taken = (read_lines(out / f"{name}_measured.jsonl") for name in ("winners", "baseline"))
    assert {line["key"] for line in taken} == {line["key"] for line in winners} >= {baseline["digest"]}
    assert taken == winners
    (card,) = (card for card in result["subnets"] if card["digest"] == baseline["digest"])
    assert baseline["measured_ms"] == pytest.approx(card["latency"]["p50_ms"])


def test_a_front_without_winners_is_refused_in_one_line(
    supernet: Path, data: dict[str, EvaluationData], device: AgentClient, tmp_path: Path
) -> None:
    write_front(tmp_path, tailor_ir.load(supernet), [])
    with pytest.raises(UserError, match=r"front '.*front\.json': has no winner; search again: autotailor search"):
        export.run(
            export.ExportRequest(settings=QUICK, supernet=supernet, search=tmp_path, data=data),
            device,
            Workspace(out=tmp_path / "out", progress=Silent()),
        )


def test_exported_onnx_has_the_subnets_own_statistics(
    exported: tuple[Path, Mapping[str, Any]], supernet: Path, data: dict[str, EvaluationData]
) -> None:
    out, result = exported
    net = tailor_ir.load(supernet)
    images = data["validation"]
    for card in result["subnets"]:
        height, width = net.input_shape(card["config"])[-2:]
        x, _ = next(iter(images.batches((height, width))))
        module = net.build(card["config"], statistics_of(net, card["config"], images)).eval()
        with torch.inference_mode():
            expected = module(x).numpy()
        file = out / f"{card['digest']}.onnx"
        assert "BatchNormalization" not in {node.op_type for node in onnx.load(file).graph.node}
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        got = np.concatenate([session.run(None, {name: image[None]})[0] for image in x.numpy()])
        assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()
        shared = net.build(card["config"]).eval()
        with torch.inference_mode():
            apart = np.abs(shared(x).numpy() - expected).max()
        largest = card["digest"] == net.space.digest(net.max_config)  # those that are stored are its own
        assert apart == 0 if largest else apart > 1e-2 * np.abs(expected).max()
        correct = sum(int((module(x).argmax(1) == y).sum()) for x, y in images.batches((height, width)))
        assert card["accuracy"]["validation"] == pytest.approx(correct / 100, abs=1e-9)


@pytest.mark.long
def test_finished_subnets_are_not_exported_again(
    exported: tuple[Path, Mapping[str, Any]],
    supernet: Path,
    search: Path,
    data: dict[str, EvaluationData],
    device: AgentClient,
    tmp_path: Path,
) -> None:
    folder, first = exported
    out = Path(shutil.copytree(folder, tmp_path / "out"))
    lines = (out / export.DONE_FILE).read_text().splitlines()
    (out / export.DONE_FILE).write_text(lines[0] + "\n" + lines[1][:20])  # killed while the second was written
    untouched = {path: path.stat().st_mtime_ns for path in out.glob(f"{first['subnets'][0]['digest']}*")}
    again = export.run(
        export.ExportRequest(settings=QUICK, supernet=supernet, search=search, data=data),
        device,
        Workspace(out=out, progress=Silent()),
    )
    assert again["subnets"][0] == first["subnets"][0]
    assert again["subnets"][1]["files"]["onnx"]["sha256"] == first["subnets"][1]["files"]["onnx"]["sha256"]
    assert {path: path.stat().st_mtime_ns for path in untouched} == untouched


def test_a_winner_that_misses_its_budget_is_replaced_and_told(
    exported: tuple[Path, Mapping[str, Any]],
    supernet: Path,
    data: dict[str, EvaluationData],
    device: AgentClient,
    tmp_path: Path,
) -> None:
    folder, first = exported
    out, net = Path(shutil.copytree(folder, tmp_path / "out")), tailor_ir.load(supernet)
    slow_ms, fast_ms = (card["latency"]["p50_ms"] for card in first["subnets"])
    budget_ms = (slow_ms + fast_ms) / 2
    write_front(tmp_path, net, [(net.max_config, budget_ms), (net.max_config, HUGE_MS)])
    timed = {
        card["digest"]: Measurement.model_validate({"key": card["digest"], **card["latency"]})
        for card in first["subnets"]
    }
    candidates = tuple(
        Candidate(
            **row.to_json(), smoothed_ms=timed[row.digest].p50_ms, latency=timed[row.digest], accuracy=0.5, loss=1.0
        )
        for row in (predicted(net, net.max_config), predicted(net, net.min_config))
    )
    pool = Candidates(candidates=candidates, budgets=(), likely={})
    substitutes = lambda: export.MeasuredSubstitutes(pool)  # noqa: E731
    settings = QUICK.model_copy(
        update={"keep_winners": True}
    )  # of untrained SubNets the smaller is as good as the larger
    result = export.run(
        export.ExportRequest(settings=settings, supernet=supernet, search=tmp_path, data=data, substitutes=substitutes),
        device,
        Workspace(out=out, progress=Silent()),
    )
    replaced, kept = result["winners"]
    assert replaced["digest"] == replaced["subnet"]["digest"] == first["subnets"][1]["digest"]
    assert replaced["replaces"]["digest"] == kept["digest"] == first["subnets"][0]["digest"]
    assert replaced["measured_ms"] <= budget_ms < replaced["replaces"]["measured_ms"]
    assert replaced["within_budget"]
    assert "replaces" not in kept
    assert {card["digest"] for card in result["subnets"]} == {replaced["digest"], kept["digest"]}


@pytest.mark.parametrize("correct", [80, 20])
def test_the_largest_subnet_takes_budgets_that_it_keeps_from_less_accurate_ones(
    correct: int, supernet: Path, data: dict[str, EvaluationData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = tailor_ir.load(supernet)
    front = write_front(
        tmp_path, net, [(net.min_config, TINY_MS), (net.min_config, HUGE_MS), (net.min_config, 2 * HUGE_MS)]
    )
    found = {
        net.space.digest(net.max_config): Accuracy(correct, 100, 1.0),
        front.winners[0].digest: Accuracy(50, 100, 1.0),
    }
    monkeypatch.setattr("tasks.export.stage._evaluated", lambda *_: {"validation": found, "test": found})
    settings = QUICK.model_copy(update={"formats": ("onnx",)})
    with local_agent("onnxruntime") as client, client.lease():
        result = export.run(
            export.ExportRequest(settings=settings, supernet=supernet, search=tmp_path, data=data),
            client,
            Workspace(out=tmp_path, progress=Silent()),
        )
    small, largest = front.winners[0].digest, front.largest.digest
    assert [row["digest"] for row in result["winners"]] == [small, *[largest if correct > 50 else small] * 2]
    assert [card["digest"] for card in result["subnets"]] == ([small, largest] if correct > 50 else [small])
    files = sorted(file.name for file in tmp_path.glob("*.onnx"))
    assert files == sorted(f"{card['digest']}.onnx" for card in result["subnets"]), "each SubNet once"
    export.write_readable(tmp_path, tmp_path / "readable")
    assert len([*(tmp_path / "readable").glob("*.onnx")]) == len(files)
    of_budgets = [row["files"] for row in json.loads((tmp_path / "readable/index.json").read_text())["winners"]]
    assert of_budgets[1] == of_budgets[2], "a SubNet that wins two budgets is there once, under the smaller one"
    if correct > 50:
        assert result["winners"][1]["replaces"]["digest"] == small
        assert result["winners"][1]["subnet"]["config"] == net.max_config


class Lost(Silent):
    """Ends a device's process when the files are to be made."""

    def __init__(self, process: psutil.Process) -> None:
        self.process = process

    @contextmanager
    def bar(self, name: str, total: int, done: int = 0) -> Iterator[Bar]:
        if name == "export":
            self.process.kill()
            self.process.wait(60)
        with super().bar(name, total, done) as bar:
            yield bar


def test_a_device_that_is_lost_is_no_failed_file(
    supernet: Path, search: Path, data: dict[str, EvaluationData], tmp_path: Path
) -> None:
    before = {process.pid for process in psutil.Process().children()}
    with local_agent(backend="onnxruntime") as client, client.lease():
        (process,) = [one for one in psutil.Process().children() if one.pid not in before]
        with pytest.raises(AgentError, match=r"agent http.*not reachable"):
            export.run(
                export.ExportRequest(settings=QUICK, supernet=supernet, search=search, data=data),
                client,
                Workspace(out=tmp_path, progress=Lost(process)),
            )
    assert not (tmp_path / export.DONE_FILE).exists()
    assert not (tmp_path / export.EXPORTS_FILE).exists()


@pytest.mark.long
def test_a_file_that_differs_from_torch_is_reported_and_not_kept(
    supernet: Path, search: Path, data: dict[str, EvaluationData], device: AgentClient, tmp_path: Path
) -> None:
    strict = QUICK.model_copy(update={"tolerance": export.Tolerance(fp32=1e-12)})
    result = export.run(
        export.ExportRequest(settings=strict, supernet=supernet, search=search, data=data),
        device,
        Workspace(out=tmp_path, progress=Silent()),
    )
    for card in result["subnets"]:
        for file in card["files"].values():
            assert file["state"] == "failed"
            assert "outputs differ from torch by" in file["reason"]
    assert not [*tmp_path.glob("*.onnx"), *tmp_path.glob("*.ncnn.*")]
    assert not any(row["files_ok"] for row in result["winners"])


@pytest.mark.long
def test_a_device_of_lower_precision_is_checked_with_its_own_tolerance(
    supernet: Path, search: Path, data: dict[str, EvaluationData], tmp_path: Path
) -> None:
    wide = QUICK.model_copy(update={"tolerance": export.Tolerance(bf16=0.2)})  # torch in bf16 differs by 0.09 here
    folders = tmp_path / "wide", tmp_path / "strict"
    for folder in folders:
        folder.mkdir()
    with local_agent("ncnn", options=["--precision", "bf16"]) as client, client.lease():
        kept, refused = (
            export.run(
                export.ExportRequest(settings=settings, supernet=supernet, search=search, data=data),
                client,
                Workspace(out=out, progress=Silent()),
            )
            for settings, out in ((wide, folders[0]), (QUICK, folders[1]))
        )
    for card in kept["subnets"]:
        assert (card["files"]["ncnn"]["precision"], card["files"]["onnx"]["precision"]) == ("bf16", "fp32")
        assert card["files"]["ncnn"]["state"] == card["files"]["onnx"]["state"] == "ok"
        assert 1e-3 < card["files"]["ncnn"]["relative_difference"] <= 0.2
        assert card["files"]["onnx"]["relative_difference"] <= 1e-4
    failed = [card["files"] for card in refused["subnets"] if card["files"]["ncnn"]["state"] == "failed"]
    assert failed
    assert all("allowed in bf16: 0.02" in files["ncnn"]["reason"] for files in failed)
    assert all(card["files"]["onnx"]["state"] == "ok" for card in refused["subnets"])
