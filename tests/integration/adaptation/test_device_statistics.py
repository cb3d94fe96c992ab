"""Weights that adapt on the device compute what torch computes: statistics of images, and answers with them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tailor_ir
from adaptive_runtime.bundle.bundles import AdaptationSource
from adaptive_runtime.weights import NormStatistics, StatisticsWeights, WeightOptions
from adaptive_runtime.weights.weights import LabelledSource
from tailor_ir import SuperNet
from tasks.adaptation import AdaptiveSubnet, MethodSettings, make_method
from tasks.adaptation.guards import SourceProfile
from tasks.data import Dataset, DataSettings, open_source
from tasks.evaluation.adapted import AdaptiveBatchNorm
from tasks.evaluation.subnets import EvaluationData
from tasks.export.bundles.extras import adaptable_net, labelled_images, observed
from tests.support.ir.networks import perturb, small_net
from tests.support.runtime.bundled import OBSERVED_IMAGES, SETTINGS

TOLERANCE = 1e-4
PRIOR_IMAGES, NEWEST_SHARE = 4.0, 0.3


def images(count: int, seed: int, shift: float = 0.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((count, 3, 16, 16)) + shift).astype(np.float32)


@pytest.fixture(scope="module")
def net() -> SuperNet:
    torch.manual_seed(0)
    return tailor_ir.compile(perturb(small_net(blocks=2)), torch.randn(1, 3, 16, 16), {"*.width_mult": [0.5, 1]})


@pytest.mark.parametrize("which", ["largest", "smallest"])
def test_steps_on_the_device_are_those_of_torch(net: SuperNet, which: str, tmp_path: Path) -> None:
    config = net.max_config if which == "largest" else net.min_config
    statistics = net.recalibrate(config, [torch.from_numpy(images(64, 1))])
    net.export_together({which: (config, statistics)}, tmp_path, observed_images=OBSERVED_IMAGES)
    facts = adaptable_net(which, OBSERVED_IMAGES, tmp_path, images(96, 2), SETTINGS)
    assert facts is not None
    network = observed(facts, tmp_path, SETTINGS)
    source = AdaptiveSubnet.of(net, config, statistics)
    layers = [layer for layer in source.norms.values() if isinstance(layer, AdaptiveBatchNorm)]
    assert len(layers) == len(source.norms) == len(facts.norms)
    expected = [(layer.running_mean.numpy(), layer.running_var.numpy()) for layer in layers]
    own = NormStatistics(*(np.concatenate(each) for each in zip(*expected, strict=True)))
    told = AdaptationSource.from_bytes((tmp_path / facts.source).read_bytes(), facts.source)
    profile = SourceProfile(source, [torch.from_numpy(images(96, 2))])
    assert told.calibration_ND.shape == (48, 4)
    assert told.calibration_ND == pytest.approx(profile.calibration_ND, rel=1e-3)

    anchor = LabelledSource(images(32, 3), np.zeros(32, np.int64))
    options = WeightOptions(prior_images=PRIOR_IMAGES, newest_share=NEWEST_SHARE)
    weights = StatisticsWeights(network, own, lambda: anchor, options)
    settings = MethodSettings(method="batchnorm", prior_images=PRIOR_IMAGES, newest_share=NEWEST_SHARE)
    method = make_method(source, settings, [])
    x = images(8, 9, 0.7)
    with torch.no_grad():
        assert np.abs(weights.look(x).logits_BK - source(torch.from_numpy(x)).numpy()).max() <= TOLERANCE
    for step in range(3):
        batch = images(OBSERVED_IMAGES, 10 + step, 0.7)
        method.adapt(torch.from_numpy(batch))
        weights.adapt(batch)
    found = weights.statistics.by_name(facts.norms)
    for norm, layer in zip(facts.norms, layers, strict=True):
        assert np.abs(found[norm.mean] - layer.running_mean.numpy()).max() <= TOLERANCE
        assert np.abs(found[norm.variance] - layer.running_var.numpy()).max() <= TOLERANCE
    with torch.no_grad():
        logits = source(torch.from_numpy(x)).numpy()
    assert np.abs(weights.look(x).logits_BK - logits).max() <= TOLERANCE * np.abs(logits).max()
    weights.reset()
    assert np.abs(weights.look(x).logits_BK - logits).max() > 100 * TOLERANCE


class NormalisedTokens(nn.Module):
    """BatchNorm of the tokens of all images as rows of one matrix, as in LeViT."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.mix, self.norm = nn.Conv2d(3, 8, 4, stride=4), nn.Linear(8, 12), nn.BatchNorm1d(12)
        self.head = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.mix(self.stem(x).flatten(2).transpose(1, 2))
        return self.head(self.norm(tokens.flatten(0, 1)).reshape_as(tokens).relu().mean(1))


def test_tokens_that_are_normalised_as_rows_count_by_image(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = tailor_ir.compile(perturb(NormalisedTokens()), torch.zeros(1, 3, 16, 16))
    config = net.max_config
    net.export_together({"tokens": (config, None)}, tmp_path, observed_images=OBSERVED_IMAGES)
    facts = adaptable_net("tokens", OBSERVED_IMAGES, tmp_path, images(96, 2), SETTINGS)
    assert facts is not None
    told = AdaptationSource.from_bytes((tmp_path / facts.source).read_bytes(), facts.source)
    source = AdaptiveSubnet.of(net, config)
    profile = SourceProfile(source, [torch.from_numpy(images(96, 2))])
    assert told.calibration_ND == pytest.approx(profile.calibration_ND, rel=1e-3)
    network, own = observed(facts, tmp_path, SETTINGS), NormStatistics(told.mean, told.variance)
    batch, (layer,) = images(OBSERVED_IMAGES, 9, 0.7), source.norms.values()
    read: list[torch.Tensor] = []
    layer.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    with torch.no_grad():
        logits = source(torch.from_numpy(batch)).numpy()
    assert np.abs(network.look(batch, own).logits_BK - logits).max() <= TOLERANCE * np.abs(logits).max()
    found, (rows,) = network.statistics(batch, own, 0.0), read
    assert found.mean_F == pytest.approx(rows.mean(0).numpy(), abs=TOLERANCE)
    assert found.variance_F == pytest.approx(rows.var(0, correction=0).numpy(), rel=TOLERANCE)


def test_images_that_tell_what_is_usual_are_of_all_classes_of_a_sorted_split() -> None:
    settings = DataSettings(kind="digits", workers=1)
    source, places = open_source(settings)
    held_out = places["validation"]
    by_class = Dataset(settings, source, held_out[np.argsort(source.labels[held_out], kind="stable")])
    data = EvaluationData(by_class, Dataset(settings, source, places["train"]), batch_size=32)
    size = (settings.resolution,) * 2
    x, y = labelled_images(data, size, 60)
    assert len(x) == 60
    assert min(len(set(y[:30])), len(set(y[30:]))) >= 7
    more, labels = labelled_images(data, size, 80)
    assert np.array_equal(more[:60], x)
    assert np.array_equal(labels[:60], y)
    everything, _ = labelled_images(data, size, len(by_class))
    whole = torch.cat([part for part, _ in by_class.batches(32)])
    assert np.array_equal(np.sort(everything.sum((1, 2, 3))), np.sort(whole.numpy().sum((1, 2, 3))))
