"""First weights of alternatives from data: nearer in the results than weights alone are, exact where the kind can be exact."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import nn

import tailor_ir
from tailor_ir.alternatives.fitting import find_last_layer
from tailor_ir.subnets.elastic import Branches
from tests.support.ir import first_weights
from tests.support.ir.first_weights import errors_of, images
from tests.support.ir.networks import from_timm, perturb

_seeded = first_weights._seeded


def slim(network: str) -> tuple[nn.Module, torch.Tensor]:
    """A perturbed network of FAMILIES: ResNet-26 with a quarter of its channels, a third of the transformer, half as wide."""
    smaller: dict[str, dict[str, Any]] = {
        "resnet26": {"channels": [16, 32, 64, 128]},
        "vit_tiny_patch16_224": {"depth": 4, "img_size": 64, "embed_dim": 96},
    }
    if network not in smaller:
        return from_timm(network)
    torch.manual_seed(0)
    return perturb(timm.create_model(network, num_classes=10, **smaller[network])), torch.randn(1, 3, 64, 64)


@cache
def fitted(network: str, kinds: tuple[str, ...]) -> tuple[tailor_ir.SuperNet, dict[str, float], dict[str, float]]:
    """A network with statistics of its images, and the mean error of each choice: from weights alone, and from data."""
    model, sample = slim(network)
    size = sample.shape[-1]
    net = tailor_ir.compile(model, sample, {"alternatives": list(kinds)})
    seen, held_out = images(size, 64, 0), images(size, 32, 1)
    net.set_statistics(net.recalibrate(net.max_config, seen))
    net.elastic.eval()
    branches = Branches(net.elastic)
    with torch.no_grad():
        for name, tensor in branches.observe(seen).items():
            net.elastic.tensor(name).copy_(tensor)
    before = errors_of(branches, held_out)
    told = net.fit_alternatives(seen, held_out, np.random.default_rng(0))
    after = {f"{each.variable}={each.choice}": each.error for each in told}
    assert after == pytest.approx(errors_of(branches, held_out), rel=1e-3)
    return net, before, after


NETWORKS = {
    "resnet26": ("merged", "pruned", "low_rank", "separable", "grouped", "fire", "ghost"),
    "mobilenetv2_050": ("merged", "pruned", "low_rank"),
    "vit_tiny_patch16_224": ("merged", "pruned", "low_rank"),
}


@pytest.mark.parametrize("network", list(NETWORKS))
def test_data_bring_every_kind_nearer_to_the_blocks(network: str) -> None:
    _, before, after = fitted(network, NETWORKS[network])
    choices = {each.rpartition("=")[2] for each in after}
    for choice in choices:
        own = [each for each in after if each.endswith(f"={choice}")]
        assert np.mean([after[each] for each in own]) < np.mean([before[each] for each in own]), choice
    assert np.mean(list(after.values())) < 0.8 * np.mean(list(before.values()))


def test_the_network_itself_is_not_touched() -> None:
    net, _, _ = fitted("resnet26", NETWORKS["resnet26"])
    model, sample = slim("resnet26")
    again = tailor_ir.compile(model, sample, {"alternatives": list(NETWORKS["resnet26"])})
    own = set(net.structure.graph.original().initializers) - set(net.structure.graph.statistics)
    assert all(torch.equal(net.elastic.tensor(name), again.elastic.tensor(name)) for name in own)
    moved = {n for n in net.structure.graph.parameters if n not in own}
    assert any(not torch.equal(net.elastic.tensor(name), again.elastic.tensor(name)) for name in moved)


def test_a_fitted_network_is_saved_and_fits_the_same_again(tmp_path: Path) -> None:
    net, _, after = fitted("vit_tiny_patch16_224", NETWORKS["vit_tiny_patch16_224"])
    net.save(tmp_path)
    again = tailor_ir.load(tmp_path)
    size = again.input_shape(again.max_config)[-1]
    told = again.fit_alternatives(images(size, 64, 0), images(size, 32, 1), np.random.default_rng(0))
    assert {f"{each.variable}={each.choice}": each.error for each in told} == pytest.approx(after, rel=0.05)


def test_last_layers_are_found_behind_sums_activations_and_norms() -> None:
    net, _, _ = fitted("resnet26", NETWORKS["resnet26"])
    graph = net.structure.graph
    producers = graph.producers()
    found = {b.producer: find_last_layer(b, producers, graph.shapes) for b in Branches(net.elastic).branches}
    assert all(found.values())
    for branch in Branches(net.elastic).branches:
        last = found[branch.producer]
        assert last is not None
        assert last.norm is not None or branch.choice.startswith(("low_rank", "separable"))
        assert last.addend is not None
        assert graph.shapes[last.target] == graph.shapes[branch.exit]
        assert (last.inner is not None) == branch.choice.startswith("low_rank"), branch.choice
