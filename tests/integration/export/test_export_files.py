"""Files of every format reproduce torch in a process that has neither torch nor this project."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import timm
import torch

import tailor_ir
from adaptive_runtime.bundle.bundles import OpenBundle
from profiling_agents.client import MeasureSettings, local_agent
from tasks import export
from tasks.base.artifacts import Workspace
from tasks.base.errors import UserError
from tasks.base.progress import Silent
from tasks.base.schemas.exports import Card, Exports
from tasks.data import DataSettings, load_splits
from tasks.evaluation.conversion import onnx_of
from tasks.evaluation.ncnn.conversion import ConversionError
from tasks.evaluation.subnets import EvaluationData, statistics_of
from tasks.export.bundles import BundleContents, BundleRequest, write_bundle
from tasks.export.onnx_files import BATCHES, dynamic_batch, fact_file, properties
from tests.support import SUPPORT
from tests.support.fronts import write_front
from tests.support.ir.networks import perturb

FORMATS = ("onnx", "ncnn", "ncnn_fp16", "torch")
SETTINGS = export.Settings(
    formats=FORMATS,
    dynamic_batch=True,
    bundle=True,
    measure=MeasureSettings(time_cap_ms=10.0, warmup_ms=1.0, min_blocks=2, patience=0.0),
)
PROVENANCE = export.Provenance(
    network={"name": "resnet", "weights": "random", "licence": "none: made here"},
    data="digits",
    digests={"SuperNet": "0123456789abcdef"},
)
IMAGES = 3
FOREIGN = SUPPORT / "tables" / "foreign_process.py"


@pytest.fixture(scope="module")
def images() -> EvaluationData:
    splits = load_splits(DataSettings(kind="digits"))
    return EvaluationData(splits["test"], splits["train"], recalibration_images=64, limit=50)


@pytest.fixture(scope="module")
def exported(
    supernet: Path, images: EvaluationData, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Mapping[str, Any]]:
    """The folder of an export of two SubNets, with torch's outputs for some images beside the files."""
    net = tailor_ir.load(supernet)
    folder, out = tmp_path_factory.mktemp("search"), tmp_path_factory.mktemp("export")
    front = write_front(folder, net, [(net.max_config, 1e6), (net.min_config, 1e6)], [net.min_config])
    with local_agent("onnxruntime") as client, client.lease():
        result = export.run(
            export.ExportRequest(
                settings=SETTINGS, supernet=supernet, search=folder, data={"test": images}, provenance=PROVENANCE
            ),
            client,
            Workspace(out=out, progress=Silent()),
        )
    for row in front.winners:
        write_references(net, row.config, images, out)
    return out, result


def write_references(net: tailor_ir.SuperNet, config: Any, images: EvaluationData, out: Path) -> None:
    height, width = net.input_shape(config)[-2:]
    x_BCHW = next(iter(images.batches((height, width))))[0][:IMAGES]
    with torch.inference_mode():
        expected = net.build(config, statistics_of(net, config, images)).eval()(x_BCHW)
    np.savez(out / f"{net.space.digest(config)}.npz", inputs=x_BCHW.numpy(), expected=expected.numpy())


def run_elsewhere(folder: Path, *options: str) -> dict[str, float]:
    """Differences by file, from a process that has no torch and nothing of this project."""
    command = [sys.executable, "-I", str(FOREIGN), str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=300)
    assert done.returncode == 0, done.stderr
    differences: dict[str, float] = json.loads(done.stdout)
    return differences


def test_exports_reproduce_torch_where_there_is_neither_torch_nor_this_project(
    exported: tuple[Path, Mapping[str, Any]],
) -> None:
    out, result = exported
    differences = run_elsewhere(out)
    for card in result["subnets"]:
        digest = card["digest"]
        assert card["files"].keys() == set(FORMATS)
        assert all(file["state"] == "ok" for file in card["files"].values())
        assert differences.pop(f"{digest}.onnx") <= 1e-4
        assert differences.pop(f"{digest}.ncnn.param") <= 1e-4
        assert 1e-6 < differences.pop(f"{digest}.fp16.ncnn.param") <= 2e-2
        full, half = ((out / f"{digest}{suffix}").stat().st_size for suffix in (".ncnn.bin", ".fp16.ncnn.bin"))
        assert half < 0.6 * full
        assert differences.pop(f"bundle/{digest}.onnx") <= 1e-4
    assert not differences


@pytest.mark.long
@pytest.mark.parametrize("name", ["mobilenetv3_small_050", "test_vit", "test_convnext"])
def test_so_do_those_of_other_architectures_with_a_batch_that_is_not_dynamic(
    name: str, images: EvaluationData, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"img_size": 32} if "vit" in name else {}
    network = perturb(timm.create_model(name, num_classes=10, **options).eval())
    net = tailor_ir.compile(network, torch.zeros(1, 3, 32, 32))
    net.save(tmp_path / "supernet")
    config = net.space.sample(np.random.default_rng(1))
    search, out = tmp_path / "search", tmp_path / "out"
    search.mkdir()
    out.mkdir()
    write_front(search, net, [(config, 1e6)])
    settings = SETTINGS.model_copy(
        update={"formats": ("onnx", "ncnn", "ncnn_fp16"), "dynamic_batch": False, "bundle": False, "keep_winners": True}
    )
    with local_agent("onnxruntime") as client, client.lease():
        supernet = tmp_path / "supernet"
        result = export.run(
            export.ExportRequest(
                settings=settings, supernet=supernet, search=search, data={"test": images}, provenance=PROVENANCE
            ),
            client,
            Workspace(out=out, progress=Silent()),
        )
    write_references(net, config, images, out)
    (card,) = result["subnets"]
    assert {name: file["state"] for name, file in card["files"].items()} == dict.fromkeys(settings.formats, "ok")
    differences = run_elsewhere(out)
    digest = card["digest"]
    assert differences[f"{digest}.onnx"] <= 1e-4
    assert differences[f"{digest}.ncnn.param"] <= 1e-4
    assert differences[f"{digest}.fp16.ncnn.param"] <= 2e-2
    assert len(differences) == 3


def test_torch_archives_reproduce_torch_without_this_project(
    exported: tuple[Path, Mapping[str, Any]], tmp_path: Path
) -> None:
    out, result = exported
    for file in (*out.glob("*.pt2"), *out.glob("*.npz")):
        shutil.copy(file, tmp_path)
    differences = run_elsewhere(tmp_path, "--torch")
    assert differences.keys() == {f"{card['digest']}.pt2" for card in result["subnets"]}
    assert max(differences.values()) <= 1e-4


def test_a_bundle_has_common_weights_once(exported: tuple[Path, Mapping[str, Any]]) -> None:
    out, result = exported
    told = result["bundle"]
    assert told["state"] == "ok"
    assert told["bytes"] == sum(file.stat().st_size for file in (out / "bundle").iterdir())
    assert told["bytes_alone"] == sum((out / f"{card['digest']}.onnx").stat().st_size for card in result["subnets"])
    largest = max(card["files"]["onnx"]["bytes"] for card in result["subnets"])
    assert (out / "bundle" / "weights.safetensors").stat().st_size < 1.1 * largest
    sample = (out / "bundle" / "calibration.npz").stat().st_size
    assert told["bytes"] - sample < 0.75 * told["bytes_alone"]
    index = json.loads((out / "bundle" / "bundle.json").read_text())
    assert [row["latency"]["p50_ms"] for row in index["subnets"]] == [
        card["latency"]["p50_ms"] for card in result["subnets"]
    ]
    assert all((out / "bundle" / row["nets"]["onnx"]["files"][0]).is_file() for row in index["subnets"])


def bundle_of(
    settings: export.Settings, supernet: Path, result: Mapping[str, Any], images: EvaluationData
) -> BundleRequest:
    """A bundle of exported SubNets."""
    found = Exports.model_validate(result)
    net = tailor_ir.load(supernet)
    return BundleRequest(settings=settings, net=net, cards=found.subnets, images=images, device=found.device)


def test_a_bundle_that_differs_from_torch_is_not_kept(
    exported: tuple[Path, Mapping[str, Any]], supernet: Path, images: EvaluationData, tmp_path: Path
) -> None:
    _, result = exported
    strict = SETTINGS.model_copy(update={"tolerance": export.Tolerance(fp32=1e-12)})
    told = write_bundle(bundle_of(strict, supernet, result, images), Workspace(out=tmp_path, progress=Silent()))
    assert told.state == "failed"
    assert told.reason is not None
    assert "outputs differ from torch by" in told.reason
    assert not list(tmp_path.iterdir())


def test_a_bundle_has_the_rules_of_the_run_unless_it_cannot_follow_them(
    exported: tuple[Path, Mapping[str, Any]], supernet: Path, images: EvaluationData, tmp_path: Path
) -> None:
    _, result = exported
    bundle, workspace = bundle_of(SETTINGS, supernet, result, images), Workspace(out=tmp_path, progress=Silent())
    bundle = replace(bundle, cards=bundle.cards[:1])
    ruled = replace(bundle, contents=BundleContents(rules="load > 80% -> latency first"))
    assert write_bundle(ruled, workspace).state == "ok"
    assert OpenBundle.open(tmp_path / "bundle").manifest.policy == "load > 80% -> latency first"
    with pytest.raises(
        UserError, match=r"^runtime\.rules: policy, rule 'energy first': needs the energy of variants, which"
    ):
        write_bundle(replace(bundle, contents=BundleContents(rules="energy first")), workspace)


def test_a_model_card_tells_what_the_subnet_is_and_where_it_comes_from(
    exported: tuple[Path, Mapping[str, Any]], supernet: Path
) -> None:
    out, result = exported
    net = tailor_ir.load(supernet)
    for card in result["subnets"]:
        assert card["made_from"] == {
            "network": dict(PROVENANCE.network),
            "data": "digits",
            "digests": dict(PROVENANCE.digests),
        }
        choices = {row["name"]: row["choice"] for row in card["architecture"]["variables"]}
        assert choices == net.space.canonical(card["config"])
        assert sum(card["architecture"]["operators"].values()) == len(net.operators(card["config"]))
        assert card["device"]["backend"] == "onnxruntime"
        text = (out / f"{card['digest']}.md").read_text()
        wanted = [
            "none: made here",
            "0123456789abcdef",
            card["device"]["fingerprint"],
            f"{100 * card['accuracy']['test']:.1f} ± ",
        ]
        assert all(word in text for word in [*wanted, *choices, f"{card['digest']}.fp16.ncnn.bin"])


def test_a_model_card_tells_what_an_application_does_with_images_and_outputs(
    exported: tuple[Path, Mapping[str, Any]],
) -> None:
    out, result = exported
    data = DataSettings(kind="digits")
    for card in result["subnets"]:
        assert card["classes"] == list("0123456789")
        told = card["preparation"]
        assert (told["colours"], told["crop"], told["interpolation"]) == ("RGB", "none", "bicubic, antialiased")
        assert (tuple(told["mean"]), tuple(told["deviation"])) == (data.mean, data.deviation)
        assert (told["resolution"], told["size"]) == (data.resolution, card["input_shape"][-2:])
        text = (out / f"{card['digest']}.md").read_text()
        assert "subtract (0.485, 0.456, 0.406), divide by (0.229, 0.224, 0.225), by channel" in text
        assert "| 7 | 7 |" in text
        small = told["size"] != [data.resolution] * 2
        assert ("16 × 16 pixels, scaled by: bilinear, antialiased" in text) == small
    assert {card["preparation"]["size"][0] for card in result["subnets"]} == {16, 32}


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture
def apart(exported: tuple[Path, Mapping[str, Any]], tmp_path: Path) -> tuple[Path, Mapping[str, Any]]:
    """The same export, in which each SubNet wins the budget that it was searched for, whichever of them is better."""
    out = Path(shutil.copytree(exported[0], tmp_path / "apart"))
    found = Exports.read(out / export.EXPORTS_FILE)
    rows = tuple(found.winners[0].model_copy(update={"digest": card.digest}) for card in found.subnets)
    found.model_copy(update={"winners": rows}).write(out / export.EXPORTS_FILE)
    winners = [{**exported[1]["winners"][0], "digest": card["digest"]} for card in exported[1]["subnets"]]
    return out, {**exported[1], "winners": winners}


def test_exported_files_lie_under_readable_names_with_their_cards(
    apart: tuple[Path, Mapping[str, Any]], tmp_path: Path
) -> None:
    out, result = apart
    folder = tmp_path / "exports" / "board"
    export.write_readable(out, folder)
    index = json.loads((folder / "index.json").read_text())
    assert [row["budget_ms"] for row in index["winners"]] == [row["budget_ms"] for row in result["winners"]]
    for row, card in zip(index["winners"], result["subnets"], strict=True):
        stem = f"1e+06ms-resnet-{card['digest'][:8]}"
        assert (folder / f"{stem}.onnx").read_bytes() == (out / f"{card['digest']}.onnx").read_bytes()
        own = json.loads((folder / f"{stem}.json").read_text())
        named = {name for file in own["files"].values() for name in (*file["sha256"], *file["examples"])}
        assert named | {f"{stem}.json", f"{stem}.md"} == set(row["files"])
        assert f"{stem}.fp16.ncnn.bin" in (folder / f"{stem}.md").read_text()
        assert {**own, "files": None} == {"version": 1, **card, "files": None}
    assert set(files_in(folder)) == {"index.json", *index["sha256"]}
    assert {name for row in index["winners"] for name in row["files"]} < set(index["sha256"])
    assert files_in(folder / "bundle") == files_in(out / "bundle")


def test_each_run_replaces_what_an_earlier_one_wrote_and_nothing_else(
    apart: tuple[Path, Mapping[str, Any]], tmp_path: Path
) -> None:
    out, other, folder = apart[0], tmp_path / "other", tmp_path / "board"
    export.write_readable(out, folder)
    first = files_in(folder)
    stems = {Path(name).stem for name in first if name.endswith(".pt2")}
    kept, changed = sorted(stems)
    (folder / "notes.txt").write_text("mine")
    (folder / f"{changed}.md").write_text("mine, too")
    (folder / f"{kept}.pt2").write_text("also mine")
    before = (folder / f"{kept}.onnx").stat().st_mtime_ns
    smaller = Exports.read(out / export.EXPORTS_FILE)
    rows = tuple(row for row in smaller.winners if kept.endswith(row.digest[:8]))
    shutil.copytree(out, other)
    smaller.model_copy(update={"winners": rows, "bundle": None}).write(other / export.EXPORTS_FILE)
    export.write_readable(other, folder)
    assert (folder / f"{kept}.onnx").stat().st_mtime_ns == before
    left = files_in(folder)
    ours = {name for name in first if name.startswith(kept)}
    assert left.keys() == ours | {"index.json", "notes.txt", f"{changed}.md", f"{kept}.pt2.kept-1"}
    assert {name: left[name] for name in ours} == {name: first[name] for name in ours}
    assert (left[f"{changed}.md"], left[f"{kept}.pt2.kept-1"]) == (b"mine, too", b"also mine")
    (folder / "index.json").write_text("{")
    export.write_readable(out, folder)
    assert {name: files_in(folder)[name] for name in first if name != f"{changed}.md"} == {
        name: content for name, content in first.items() if name != f"{changed}.md"
    }
    assert (folder / f"{changed}.md.kept-1").read_bytes() == b"mine, too"


def test_a_folder_that_cannot_be_written_is_one_line(exported: tuple[Path, Mapping[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "exports").write_text("a file")
    with pytest.raises(UserError, match=r"folder '.*board': cannot be written \(Not a directory\); the files are in"):
        export.write_readable(exported[0], tmp_path / "exports" / "board")


def told_by_onnx(file: Path) -> dict[str, str]:
    model = onnx.load(file, load_external_data=False)
    assert (model.producer_name, model.producer_version) == ("autotailor", version("autotailor"))
    return {row.key.removeprefix("autotailor."): row.value for row in model.metadata_props}


def test_files_of_every_format_tell_what_they_are(exported: tuple[Path, Mapping[str, Any]]) -> None:
    out, result = exported
    for card in result["subnets"]:
        digest = card["digest"]
        told = json.loads((out / f"{digest}.ncnn.json").read_text())
        assert told["version"] == version("autotailor")
        assert (told["network"], told["supernet"]) == ("resnet", "0123456789abcdef")
        assert (told["digest"], told["config"], told["accuracy"]) == (digest, card["config"], card["accuracy"])
        assert (told["predicted_ms"], told["measured_ms"]) == (1.0, card["latency"]["p50_ms"])
        assert told["classes"] == list("0123456789")
        assert card["preparation"].items() <= told.items()
        assert (out / f"{digest}.fp16.ncnn.json").read_text() == (out / f"{digest}.ncnn.json").read_text()
        assert {f"{digest}.ncnn.json", f"{digest}.ncnn.bin"} <= card["files"]["ncnn"]["sha256"].keys()
        archive = {"autotailor.json": ""}
        torch.export.load(out / f"{digest}.pt2", extra_files=archive)
        assert json.loads(archive["autotailor.json"]) == told
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in told.items()}
        assert told_by_onnx(out / f"{digest}.onnx") == texts == told_by_onnx(out / "bundle" / f"{digest}.onnx")
        session = onnxruntime.InferenceSession(out / f"{digest}.onnx", providers=["CPUExecutionProvider"])
        assert session.get_modelmeta().custom_metadata_map["autotailor.digest"] == digest


def test_an_onnx_file_does_not_carry_very_many_class_names(exported: tuple[Path, Mapping[str, Any]]) -> None:
    card = Card.model_validate(exported[1]["subnets"][0])
    names = tuple(f"wordnet synset number {number:08d}" for number in range(21_841))
    long = card.model_copy(update={"classes": names})
    told = properties(long)
    assert "autotailor.classes" not in told
    assert told["autotailor.classes_left_out"] == "21841 names, more than 65536 bytes: see the model card"
    assert sum(map(len, told.values())) < 10_000
    assert (
        json.loads(properties(long.model_copy(update={"classes": names[:1000]}))["autotailor.classes"])[999]
        == names[999]
    )
    assert json.loads(fact_file(long))["classes"] == list(names)


SMALLER: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {"img_size": 64, "depth": 2},
    "swin_tiny_patch4_window7_224": {"img_size": 64, "depths": (1, 1)},
}


@pytest.mark.parametrize("name", [*SMALLER, "mobilenetv3_small_050"])
def test_models_of_any_batch_give_each_sample_what_it_has_alone(name: str) -> None:
    torch.manual_seed(0)
    network = timm.create_model(name, num_classes=10, **SMALLER.get(name, {})).eval()
    net = tailor_ir.compile(network, torch.zeros(1, 3, 64, 64))
    config = net.min_config
    session = onnxruntime.InferenceSession(
        dynamic_batch([onnx_of(net, config, None, batch) for batch in BATCHES]), providers=["CPUExecutionProvider"]
    )
    (taken,) = session.get_inputs()
    assert taken.shape[0] == "batch"
    x_BCHW = np.random.default_rng(0).standard_normal(net.input_shape(config, 5), dtype=np.float32)
    alone = onnxruntime.InferenceSession(onnx_of(net, config, None, 1), providers=["CPUExecutionProvider"])
    expected = np.concatenate([alone.run(None, {taken.name: x[None]})[0] for x in x_BCHW])
    for batch in (1, 5):
        (got,) = session.run(None, {taken.name: x_BCHW[:batch]})
        assert np.abs(got - expected[:batch]).max() <= 1e-5 * np.abs(expected).max()


def test_what_does_not_follow_the_batch_is_refused() -> None:
    def model(values: list[float]) -> bytes:
        graph = onnx.parser.parse_graph(
            f"g (float[{len(values)},2] x) => (float[{len(values)},2] y) {{ y = Add(x, c) }}"
        )
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(values, np.float32)[:, None], "c"))
        return onnx.helper.make_model(
            graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10
        ).SerializeToString()

    repeated = onnxruntime.InferenceSession(dynamic_batch([model([2.0] * 2), model([2.0] * 3)]))
    assert (repeated.run(None, {"x": np.zeros((7, 2), np.float32)})[0] == 2.0).all()
    with pytest.raises(ConversionError, match="'c' depends on the batch in a way that is not linear"):
        dynamic_batch([model([1.0, 2.0]), model([1.0, 2.0, 3.0])])
