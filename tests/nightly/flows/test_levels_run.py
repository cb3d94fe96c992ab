"""One machine as two devices of a run: a front over SubNets and formats, and a bundle that serves in both runtimes."""

from typing import Any

import numpy as np
import pytest

import adaptive_runtime
from adaptive_runtime.bundle.bundles import OpenBundle
from adaptive_runtime.model.variants import BundleVariants
from flows.cli.commands import foresee
from flows.config import RetargetConfig
from flows.config.compose import compose_config
from flows.config.validate import validate
from tasks.base.artifacts import read_json
from tasks.export.operating_points import Levels
from tests.support.flows.fixtures import Command


def test_the_front_has_a_row_for_each_subnet_in_each_format(leveled: tuple[dict[str, Any], Command]) -> None:
    report, own = leveled
    (file,) = own.output.glob("stages/front/onnxruntime/*/levels.json")
    found = Levels.read(file)
    searched = own.output.glob("stages/[rs]e*/onnxruntime/*/front.json")
    digests = {row["digest"] for file in searched for row in read_json(file)["winners"]}
    assert found.formats == ("onnx", "ncnn_bf16")
    for form in found.formats:
        assert set(found.whole(form)) <= digests
        assert all(row.weights_mib > 0 for row in found.whole(form).values())
    assert any(row.kept for row in found.rows)
    halves = [found.whole("ncnn_bf16")[one].weights_mib / row.weights_mib for one, row in found.whole("onnx").items()]
    assert halves == pytest.approx([0.5] * len(halves))
    assert report["devices"][0]["levels"]["rows"]
    assert report["devices"][1]["levels"] is None
    assert "SubNets, exits and formats" in (own.output / "report.html").read_text()


def test_the_bundle_serves_the_kept_rows_in_both_runtimes(leveled: tuple[dict[str, Any], Command]) -> None:
    _, own = leveled
    folders = list(own.output.glob("exports/*/bundle"))
    assert [folder.parent.name for folder in folders] == ["onnxruntime"]
    bundle = OpenBundle.open(folders[0])
    levels = Levels.read(next(own.output.glob("stages/front/onnxruntime/*/levels.json")))
    for subnet in bundle.manifest.subnets:
        kept = any(row.kept for row in levels.rows if (row.digest, row.format) == (subnet.digest, "ncnn_bf16"))
        assert ("ncnn_bf16" in subnet.nets) == kept
    forms = bundle.manifest.known_formats
    table = BundleVariants.of(bundle.manifest, *forms).table
    assert len(table) >= len(bundle.manifest.subnets)
    first = bundle.manifest.subnets[0]
    size = first.of_images.resolution
    x = np.random.default_rng(0).standard_normal((2, first.input_shape[1], size, size)).astype(np.float32)
    with adaptive_runtime.load(folders[0], prepares=False) as model:
        assert model.pool.forms == forms
        for subnet in bundle.manifest.subnets:
            for form in subnet.nets:
                model.use(subnet.digest, format=form)
                assert model.infer(x).formats == (form, form)
        found = adaptive_runtime.check(model)
        assert len(found) >= sum(len(one.nets) for one in bundle.manifest.subnets)
    run = bundle.manifest.runs.get("ncnn_bf16")
    if "ncnn_bf16" in forms:
        assert run is not None
        assert (run.runtime, run.precision, run.settings["use_bf16_storage"]) == ("ncnn", "bf16", True)


def test_the_same_run_again_works_nothing(leveled: tuple[dict[str, Any], Command]) -> None:
    _, own = leveled
    config = validate(RetargetConfig, compose_config("retarget", [*own.words, f"output_dir={own.output}"]))
    states = {row.stage: row.state for row in foresee("report", config)}
    assert states["front/onnxruntime"] == "complete"
    assert states["export/onnxruntime"] == "complete"
