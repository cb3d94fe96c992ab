"""A deployed bundle: every answer is of the SubNet that it names, while SubNets are swapped, fail, and lose files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import adaptive_runtime
import tailor_ir
from adaptive_runtime.bundle.bundles import BundleManifest
from adaptive_runtime.exits import Thresholds
from adaptive_runtime.model.deployed import DeployedModel
from tests.support.ir.networks import perturb, small_net
from tests.support.runtime.bundled import answers_of_files, write_plain_bundle

TOLERANCE = 1e-5


IMAGES = 6


SPACE: dict[str, Any] = {"*.width_mult": [0.5, 1], "*.expand_ratio": [1, 2], "exits": ["stage.1.block.*"]}


class Written(NamedTuple):
    """A bundle of three SubNets, images for it, and what its files answer, by SubNet and exit."""

    folder: Path
    manifest: BundleManifest
    x: np.ndarray
    answers: dict[tuple[str, str | None], Any]

    @property
    def digests(self) -> list[str]:
        return [subnet.digest for subnet in self.manifest.subnets]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    torch.manual_seed(0)
    network = small_net(blocks=3)
    network.classifier = nn.Linear(network.classifier.in_features, 10)
    net = tailor_ir.compile(perturb(network), torch.randn(1, 3, 16, 16), SPACE)
    rng = np.random.default_rng(0)
    configs = [net.max_config, net.min_config]
    while len({net.space.digest(config) for config in configs}) < 3:
        configs.append({**net.space.sample(rng), "exit": net.max_config["exit"]})
    x = rng.standard_normal((IMAGES, 3, 16, 16)).astype(np.float32)
    folder = tmp_path_factory.mktemp("bundle")
    largest = net.space.digest(configs[0])
    plain = write_plain_bundle(net, configs, folder / "plain")
    answers = answers_of_files(plain, folder / "plain", x)
    first = next(one for one in plain.subnets if one.digest == largest).exits[0].exit
    logits = answers[largest, first]
    sure = np.sort(1 / np.exp(logits - logits.max(-1, keepdims=True)).sum(-1))
    count = len(net.exits(configs[0]))
    bars = (float(sure[IMAGES // 2 - 1 : IMAGES // 2 + 1].mean()), *[None] * (count - 2))
    thresholds = {largest: Thresholds(measure="top_probability", thresholds=bars)}
    manifest = write_plain_bundle(net, configs, folder / "bundle", thresholds)
    return Written(folder / "bundle", manifest, x, answers)


@pytest.fixture
def model(written: Written) -> Iterator[DeployedModel]:
    with adaptive_runtime.load(written.folder) as model:
        yield model


def differs(got: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(got - expected).max() / np.abs(expected).max())
