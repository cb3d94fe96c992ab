"""A bundle with segments of blocks: what it tells, and that chains of them answer as torch does."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from pydantic import ValidationError
from torch import nn

import tailor_ir
from adaptive_runtime.bundle.bundles import BlocksManifest, OpenBundle
from profiling_agents.client import MeasureSettings, local_agent
from tailor_ir.spaces.selectors import SpaceSpec
from tasks import export
from tasks.base.artifacts import Workspace
from tasks.base.errors import UserError
from tasks.base.progress import Silent
from tasks.data import DataSettings, load_splits
from tasks.evaluation.subnets import EvaluationData
from tests.support.fronts import write_front
from tests.support.ir.networks import small_net

QUICK = MeasureSettings(time_cap_ms=10.0, warmup_ms=1.0, min_blocks=2, patience=0.0)
TOLERANCE = 1e-5


def network() -> nn.Module:
    torch.manual_seed(0)
    found = small_net(blocks=2)
    found.classifier = nn.Linear(found.classifier.in_features, 10)
    return found


def exported_on(supernet: Path, folder: Path, settings: export.Settings) -> EvaluationData:
    net = tailor_ir.load(supernet)
    folder.mkdir()
    write_front(folder, net, [(net.max_config, 1e6)])
    splits = load_splits(DataSettings(kind="digits", resolution=16))
    images = EvaluationData(splits["test"], splits["train"], recalibration_images=64, limit=50)
    with local_agent("onnxruntime") as client, client.lease():
        export.run(
            export.ExportRequest(settings=settings, supernet=supernet, search=folder, data={"test": images}),
            client,
            Workspace(out=folder, progress=Silent()),
        )
    return images


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[tailor_ir.SuperNet, OpenBundle, EvaluationData]:
    folder = tmp_path_factory.mktemp("blocks")
    space: SpaceSpec = {"alternatives": ["merged", "pruned"], "*.width_mult": [0.5, 1]}
    tailor_ir.compile(network(), torch.randn(1, 3, 16, 16), space).save(folder / "supernet")
    settings = export.Settings(measure=QUICK, bundle=True, blocks=True, formats=("onnx",))
    images = exported_on(folder / "supernet", folder / "out", settings)
    return tailor_ir.load(folder / "supernet"), OpenBundle.open(folder / "out" / "bundle"), images


def test_chains_of_segments_answer_as_torch_with_statistics_of_each_alternative(
    made: tuple[tailor_ir.SuperNet, OpenBundle, EvaluationData],
) -> None:
    net, bundle, images = made
    bundle.verify_all()
    blocks = bundle.blocks()
    assert blocks.relative_difference <= TOLERANCE
    assert blocks.preparation == bundle.manifest.subnets[0].preparation
    x_BCHW = next(iter(images.batches((16, 16))))[0][:1]
    statistics = net.recalibrate_alternatives(images.calibration((16, 16)))
    for number, one in enumerate(blocks.segments):
        if one.variable is None:
            continue
        own = [n for n in blocks.largest if not one.start <= blocks.segments[n].start < one.end]
        path = tuple(sorted([number, *own], key=lambda n: blocks.segments[n].start))
        value = x_BCHW.numpy()
        for at in path:
            session = onnxruntime.InferenceSession(bundle.folder / blocks.segments[at].file)
            (value,) = session.run(None, {blocks.segments[at].input.name: value})
        config = blocks.config_of(path)
        assert net.space.canonical(config) == config
        expected = net.build(config, statistics)(x_BCHW).detach().numpy()
        assert np.abs(value - expected).max() <= TOLERANCE * np.abs(expected).max()


def test_losses_and_accuracy_are_those_of_single_replacements(
    made: tuple[tailor_ir.SuperNet, OpenBundle, EvaluationData],
) -> None:
    _, bundle, _ = made
    blocks = bundle.blocks()
    assert blocks.accuracy == {"test": bundle.manifest.subnets[0].accuracy["test"]}
    for one in blocks.segments:
        assert (one.accuracy_loss is None) == (one.variable is None)
        assert one.macs > 0
        assert one.bytes > 0
    assert BlocksManifest.model_validate_json(blocks.to_json()) == blocks


def test_segments_of_blocks_need_a_bundle_and_alternatives(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"blocks=true with bundle=false: .* allowed: bundle=true"):
        export.Settings(blocks=True)
    tailor_ir.compile(network(), torch.randn(1, 3, 16, 16), {"*.width_mult": [0.5, 1]}).save(tmp_path / "supernet")
    with pytest.raises(
        UserError, match=r"export\.blocks: true, but no block has alternatives; allowed: false; compile"
    ):
        exported_on(tmp_path / "supernet", tmp_path / "out", export.Settings(measure=QUICK, bundle=True, blocks=True))


def test_a_manifest_that_leads_nowhere_is_refused(made: tuple[tailor_ir.SuperNet, OpenBundle, EvaluationData]) -> None:
    content = made[1].blocks().model_dump()
    without = [one for one in content["segments"] if one["variable"] is not None]
    with pytest.raises(ValidationError, match="own layers do not lead from boundary 0"):
        BlocksManifest.model_validate({**content, "segments": without})
