"""The host programs of the documents follow an exported chain: they leave where the runner on the device leaves."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tailor_ir
from adaptive_runtime.bundle.chains import ExitChain
from adaptive_runtime.exits import Thresholds
from profiling_agents.client import MeasureSettings, local_agent
from tasks import export
from tasks.base.artifacts import Workspace
from tasks.base.progress import Silent
from tasks.base.schemas.exports import Exports
from tasks.data import DataSettings, load_splits
from tasks.evaluation.subnets import EvaluationData
from tests.support.docs.documents import ROOT, blocks
from tests.support.fronts import write_front
from tests.support.ir.networks import small_net

IMAGES = 6


TESTED = [(None, None), (0.0, None), (None, 0.0)]
"""Thresholds of three exits, under which all leave at the last one, the first and the second."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """The folder of a stage that exported a SubNet with three exits, `DIGEST` left out; images (N, C, H, W)."""
    folder = tmp_path_factory.mktemp("programs")
    network = small_net(blocks=3)
    network.classifier = nn.Linear(network.classifier.in_features, 10)
    net = tailor_ir.compile(network, torch.randn(1, 3, 16, 16), {"exits": ["stage.1.block.*"]})
    net.save(folder / "supernet")
    write_front(folder, net, [(net.max_config, 1e6)])
    splits = load_splits(DataSettings(kind="digits", resolution=16))
    images = EvaluationData(splits["test"], splits["train"], recalibration_images=64, limit=50)
    settings = export.Settings(measure=MeasureSettings(time_cap_ms=10.0, warmup_ms=1.0, min_blocks=2, patience=0.0))
    (folder / "out").mkdir()
    with local_agent("onnxruntime") as client, client.lease():
        result = export.run(
            export.ExportRequest(settings=settings, supernet=folder / "supernet", search=folder, data={"test": images}),
            client,
            Workspace(out=folder / "out", progress=Silent()),
        )
    (card,) = Exports.model_validate(result).subnets
    for name in ("onnx", "ncnn"):
        (folder / "out" / f"{card.digest}.{name}.segments").rename(folder / f"{name}.segments")
    return folder, next(iter(images.batches((16, 16))))[0][:IMAGES].numpy()


def shown(language: str, first_line: str) -> str:
    """The program that the document of exits shows, by its first line."""
    found = blocks(ROOT / "docs" / "exits.md")
    (text,) = (block.text for block in found if block.language == language and block.text.startswith(first_line))
    return text


def run(command: list[str]) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def check(program: list[str], more: list[str], chain_folder: Path, images: np.ndarray, scratch: Path) -> None:
    """Class, exit and confidence that a program prints are those of the runner, wherever samples leave."""
    halves = middle_bars(chain_folder, images)
    left = set()
    for bars in (*TESTED, halves):
        with ExitChain.open(chain_folder, Thresholds(measure="top_probability", thresholds=bars)) as chain:
            expected = chain.infer(images)
        words = ["2" if bar is None else repr(bar) for bar in bars]
        for at, image in enumerate(images):
            image.tofile(scratch / "x.f32")
            answer, place, sure = run([*program, str(chain_folder), str(scratch / "x.f32"), *more, *words])
            assert (int(answer), int(place)) == (expected.answers[at], expected.exits[at])
            assert float(sure) == pytest.approx(expected.confidences[at], abs=1e-4)
            left.add((bars == halves, int(place)))
    assert {place for _, place in left} == {0, 1, 2}
    assert len([place for halved, place in left if halved]) > 1


def middle_bars(chain_folder: Path, images: np.ndarray) -> tuple[float, float]:
    """A bar for the first exit that half of the images reach, and one for the second that all reach."""
    with ExitChain.open(chain_folder, Thresholds(measure="top_probability", thresholds=(0.0, None))) as chain:
        sureness = np.sort(chain.infer(images).confidences)
    return float(sureness[IMAGES // 2 - 1 : IMAGES // 2 + 1].mean()), 0.0
