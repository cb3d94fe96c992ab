"""A bundle with its SubNets in further formats: the exported files, the settings of each runtime, and what is known of them."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import adaptive_runtime
import tailor_ir
from adaptive_runtime.bundle.bundles import BundleFormat, BundleManifest, OpenBundle
from profiling_agents.client import MeasureSettings, local_agent
from profiling_agents.messages import Capabilities, Precision
from tailor_ir import SuperNet
from tasks import export
from tasks.base.artifacts import Workspace
from tasks.base.progress import Silent
from tasks.data import DataSettings, load_splits
from tasks.evaluation.quantise import Settings as QuantiseSettings
from tasks.evaluation.subnets import EvaluationData
from tasks.export.bundles import BundleContents, FurtherFormat, further_formats
from tasks.export.operating_points import LevelRow, Levels
from tests.support.fronts import write_front
from tests.support.ir.networks import small_net

QUICK = MeasureSettings(time_cap_ms=10.0, warmup_ms=1.0, min_blocks=2, patience=0.0)
FORMS: dict[str, BundleFormat] = {"fp32": "onnx", "int8": "onnx_int8", "bf16": "ncnn_bf16"}
LATENCIES_MS: dict[BundleFormat, float] = {"onnx": 4.0, "onnx_int8": 1.0, "ncnn_bf16": 2.0}


class Exported(NamedTuple):
    """A bundle of two SubNets in three formats, of which the smaller one is not preferred in bf16, and its table."""

    folder: Path
    manifest: BundleManifest
    levels: Levels


def capabilities(backend: str, precision: Precision) -> Capabilities:
    with local_agent(backend, options=["--precision", precision]) as client:
        return client.capabilities()


def levels_of(net: SuperNet) -> Levels:
    subnets = {net.space.digest(config): config for config in (net.max_config, net.min_config)}
    rows = tuple(
        LevelRow(
            digest=digest,
            config=config,
            device=device,
            format=form,
            accuracy=0.5,
            accuracy_error=0.01,
            latency_ms=LATENCIES_MS[form],
            latency_error=0.1,
            weights_mib=net.parameters(config) / 2**20,
            activations_mib=1.0,
            kept=form != "ncnn_bf16" or digest == net.space.digest(net.max_config),
        )
        for digest, config in subnets.items()
        for device, form in FORMS.items()
    )
    return Levels(device="fp32", energy_from=None, rows=rows)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("formats")
    network = small_net(blocks=2)
    network.classifier = nn.Linear(network.classifier.in_features, 10)
    compiled = tailor_ir.compile(network, torch.randn(1, 3, 16, 16), {"*.width_mult": [0.5, 1]})
    compiled.save(folder / "supernet")
    net = tailor_ir.load(folder / "supernet")
    (folder / "search").mkdir()
    (folder / "out").mkdir()
    write_front(folder / "search", net, [(net.max_config, 1e6), (net.min_config, 1e6)])
    splits = load_splits(DataSettings(kind="digits", resolution=16))
    images = EvaluationData(splits["test"], splits["train"], recalibration_images=64, limit=64)
    levels = levels_of(net)
    devices = {"int8": capabilities("onnxruntime", "int8"), "bf16": capabilities("ncnn", "bf16")}
    settings = export.Settings(
        formats=("onnx", "onnx_int8", "ncnn"),
        measure=QUICK,
        bundle=True,
        quantise=QuantiseSettings(max_loss_points=100, reduce_range=True),
    )
    further: tuple[FurtherFormat, ...] = further_formats(levels, devices)
    with local_agent("onnxruntime") as client, client.lease():
        found = export.run(
            export.ExportRequest(
                settings=settings,
                supernet=folder / "supernet",
                search=folder / "search",
                data={"test": images},
                contents=BundleContents(formats=further),
            ),
            client,
            Workspace(out=folder / "out", progress=Silent()),
        )
    assert found["bundle"]["state"] == "ok", found["bundle"]
    bundle = folder / "out" / "bundle"
    return Exported(bundle, OpenBundle.open(bundle).manifest, levels)


def test_subnets_are_there_in_the_formats_in_which_some_state_prefers_them(exported: Exported) -> None:
    largest, smallest = exported.manifest.subnets
    assert tuple(largest.nets) == ("onnx", "onnx_int8", "ncnn_bf16")
    assert tuple(smallest.nets) == ("onnx", "onnx_int8")
    assert exported.manifest.own_format == "onnx"
    assert exported.manifest.known_formats == ("onnx", "onnx_int8", "ncnn_bf16")
    assert largest.nets["ncnn_bf16"].files == (f"{largest.digest}.ncnn.param", f"{largest.digest}.ncnn.bin")
    assert set(exported.manifest.files) == {one.name for one in exported.folder.iterdir()} - {"bundle.json", "prepared"}


def test_each_format_has_its_settings_and_figures(exported: Exported) -> None:
    runs, largest = exported.manifest.runs, exported.manifest.subnets[0]
    assert (runs["onnx_int8"].precision, runs["onnx_int8"].runtime) == ("int8", "onnxruntime")
    assert (runs["ncnn_bf16"].precision, runs["ncnn_bf16"].settings["use_bf16_storage"]) == ("bf16", True)
    assert not runs["ncnn_bf16"].measured
    assert largest.nets["onnx"].figures is None
    for form in ("onnx_int8", "ncnn_bf16"):
        figures = largest.figures_of(form)
        assert figures.latency_ms == LATENCIES_MS[form]
        assert set(figures.accuracy) == set(largest.accuracy)
    assert largest.figures_of("ncnn_bf16").accuracy == largest.accuracy
    assert largest.nets["onnx_int8"].relative_difference > 0


def test_all_formats_serve_on_the_device(exported: Exported) -> None:
    size = exported.manifest.subnets[0].of_images.resolution
    x = np.random.default_rng(0).standard_normal((2, 3, size, size)).astype(np.float32)
    with adaptive_runtime.load(exported.folder, prepares=False) as model:
        for subnet in exported.manifest.subnets:
            for form in subnet.nets:
                model.use(subnet.digest, format=form)
                assert model.infer(x).formats == (form, form)
        found = adaptive_runtime.check(model)
    assert len(found) == sum(len(one.nets) for one in exported.manifest.subnets)
