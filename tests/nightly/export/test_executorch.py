"""SubNets and operators as ExecuTorch's programs: conversion and its limits, layers by order, profiles, exported files."""

import io
from pathlib import Path

import numpy as np
import pytest
import timm
import torch

import tailor_ir
from profiling_agents.client import MeasureSettings, ModelJob, local_agent
from profiling_agents.messages import LayerTiming
from tasks import export
from tasks.base.artifacts import Workspace
from tasks.base.errors import UserError
from tasks.base.progress import Silent
from tasks.data import DataSettings, load_splits
from tasks.evaluation import conversion
from tasks.evaluation.conversion import ConversionError, ConversionLimits
from tasks.evaluation.executorch.programs import operator_jobs, subnet_jobs
from tasks.evaluation.subnets import EvaluationData
from tasks.measuring import profile
from tasks.measuring.networks import ForeignLayersError, WholeSubNet, by_order
from tests.support.fronts import write_front
from tests.support.hidden_modules import hide
from tests.support.ir.networks import perturb

MEASURE = MeasureSettings(warmup_ms=1.0, time_cap_ms=20.0, min_blocks=2)
LIMITS = ConversionLimits()


def executorch() -> None:
    pytest.importorskip("executorch", reason="the extra 'executorch' is not installed")


def network(size: int = 32) -> tailor_ir.SuperNet:
    torch.manual_seed(0)
    return tailor_ir.compile(
        perturb(timm.create_model("mobilenetv2_035", num_classes=10).eval()), torch.zeros(1, 3, size, size)
    )


def timed(*kinds: str) -> list[LayerTiming]:
    return [LayerTiming(name=f"{kind} #{at}", kind=kind, time_ms=1.0) for at, kind in enumerate(kinds)]


def test_layers_belong_to_operators_by_their_order() -> None:
    net = network()
    placed = net.placed_operators(net.min_config)
    kinds = [one.feature.operator for one in placed.operators]
    layers = ["Convolution" if kind == "Conv" else "Fully Connected" if kind == "Linear" else "Other" for kind in kinds]
    assert by_order(timed(*layers), placed) == list(range(len(kinds)))
    with_transpose = by_order(timed("Transpose", *layers), placed)
    assert with_transpose == [0, *range(len(kinds))], "what prepares the input belongs to the first product"
    pool = kinds.index("GlobalAveragePool")
    doubled = [*layers[:pool], "Mean", *layers[pool:]]
    assert by_order(timed(*doubled), placed)[pool : pool + 2] == [pool, pool]
    with pytest.raises(ForeignLayersError, match=r"convolutions and matrix products ran as \d+ layers"):
        by_order(timed(*layers, "Convolution"), placed)


def test_a_missing_extra_is_one_line_with_its_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        UserError, match=r"'executorch' is not installed; install it in the clone with: pip install -e '\.\["
    ):
        subnet_jobs({"a": (network(), network().min_config)}, LIMITS)
    with pytest.raises(UserError, match="'executorch' is not installed"):
        export.Settings(formats=("onnx", "executorch"))
    hide("executorch", tmp_path, monkeypatch)
    with (
        pytest.raises(Exception, match=r"backend 'executorch': .*pip install torch executorch"),
        local_agent("executorch"),
    ):
        pass


def test_what_the_compiler_refuses_has_its_own_reason() -> None:
    executorch()
    module = torch.nn.Linear(4, 4)
    content = io.BytesIO()
    torch.export.save(torch.export.export(module, (torch.zeros(1, 4),)), content)
    bad, good = conversion.lower([b"no program", content.getvalue()])
    assert isinstance(bad, ConversionError)
    assert isinstance(good, bytes)
    (slow,) = conversion.lower([content.getvalue()], ConversionLimits(wall_s=0.01))
    assert str(slow) == "executorch took longer than 0.01 s"
    (large,) = conversion.lower([content.getvalue()], ConversionLimits(memory_mib=64))
    assert isinstance(large, ConversionError)


def test_layers_of_a_subnet_add_up_and_operators_run_alone() -> None:
    executorch()
    net = network(192)
    settings = MEASURE.model_copy(update={"layers_ms": 50.0})
    found = subnet_jobs({"small": (net, net.min_config), "large": (net, net.max_config)}, LIMITS)
    with local_agent("executorch") as client:
        for key, config in (("small", net.min_config), ("large", net.max_config)):
            job = found[key]
            assert isinstance(job, ModelJob)
            (measured,) = client.measure([job], settings)
            assert measured.state == "ok", measured.reason
            assert measured.p50_ms is not None
            placed = net.placed_operators(config)
            attributed = WholeSubNet(placed, job).attribute(measured.layers)
            total_ms = sum(time_ms for time_ms, _ in attributed)
            assert total_ms == pytest.approx(sum(layer.time_ms for layer in measured.layers))
            assert measured.p50_ms / 3 <= total_ms <= 3 * measured.p50_ms
            products = [
                count
                for (_, count), one in zip(attributed, placed.operators, strict=True)
                if one.feature.operator == "Conv"
            ]
            assert all(products)
        features = list(net.operators(net.min_config))[:4]
        jobs, failures = profile.operator_models(features, client.capabilities().formats, LIMITS, "fp32")
        assert not failures
        assert [one.state for one in client.measure(jobs, MEASURE)] == ["ok"] * len(features)
    assert list(operator_jobs(features[:1], LIMITS)) == [features[0].digest]


def test_an_exported_program_is_checked_and_reproduces_torch(tmp_path: Path) -> None:
    executorch()
    net = network()
    net.save(tmp_path / "supernet")
    splits = load_splits(DataSettings(kind="digits"))
    images = EvaluationData(splits["test"], splits["train"], recalibration_images=64, limit=50)
    search, out = tmp_path / "search", tmp_path / "out"
    search.mkdir()
    out.mkdir()
    config = net.space.sample(np.random.default_rng(1))
    write_front(search, net, [(config, 1e6)])
    settings = export.Settings(formats=("executorch", "onnx"), measure=MEASURE, keep_winners=True)
    with local_agent("executorch") as client, client.lease():
        result = export.run(
            export.ExportRequest(
                settings=settings, supernet=tmp_path / "supernet", search=search, data={"test": images}
            ),
            client,
            Workspace(out=out, progress=Silent()),
        )
    (card,) = result["subnets"]
    file = card["files"]["executorch"]
    assert file["state"] == "ok", file
    assert file["relative_difference"] <= 1e-4
    assert (out / f"{card['digest']}.pte").is_file()
    assert card["latency"]["p50_ms"] > 0
    assert card["files"]["onnx"]["state"] == "ok", "a format that the device does not take is run here"
