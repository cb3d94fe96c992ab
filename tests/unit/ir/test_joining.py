"""A backbone's SuperNet under another head: after joining, all SubNets compute in the backbone what they computed before."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import nn

import tailor_ir
from tailor_ir import Config, JoinError, SuperNet
from tailor_ir.spaces.selectors import SpaceSpec
from tasks.data.samples import image_form
from tasks.evaluation.models.outputs import classifier_of
from tests.support.boxes import small_detectors
from tests.support.ir.networks import perturb
from tests.support.problems import small_fpn

SIDE, CLASSES, SUBNETS = 32, 5, 8
WISH: SpaceSpec = {
    "alternatives": ["low_rank", "pruned"],
    "*.expand_ratio": "auto",
    "*.width_mult": "auto",
    "*.depth": "auto",
}


class Stages(nn.Module):
    """Those of the small pyramid: three feature maps."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stages = small_fpn.SmallFPN(2, channels).stages

    def forward(self, x_BCHW: torch.Tensor) -> list[torch.Tensor]:
        found = []
        for stage in self.stages:
            x_BCHW = stage(x_BCHW)
            found.append(x_BCHW)
        return found


class Segmenter(nn.Module):
    """(B, C, H, W) images -> (B, classes, H / 2, W / 2) logits, from all feature maps side by side."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.backbone, self.head = Stages(channels), nn.Conv2d(sum(small_fpn.WIDTHS), classes, 1)

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        maps = self.backbone(x_BCHW)
        size = maps[0].shape[2:]
        logits_BKhw: torch.Tensor = self.head(torch.cat([nn.functional.interpolate(one, size=size) for one in maps], 1))
        return logits_BKhw


NETWORKS = {"detector": small_detectors.ssdlite, "segmenter": Segmenter}


def compiled(module: nn.Module, wish: SpaceSpec) -> SuperNet:
    perturb(module)
    return tailor_ir.compile(module.eval(), torch.zeros(1, 3, SIDE, SIDE), wish)


def pair(make: Callable[[int, int], nn.Module], wish: SpaceSpec = WISH) -> tuple[SuperNet, SuperNet]:
    """The SuperNets of a network, and of its backbone as a classifier, with other weights."""
    whole = make(3, 3)
    net = compiled(whole, wish)
    part = compiled(classifier_of(make(3, 3), "backbone", "network", CLASSES, image_form(3, SIDE)), wish)
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in part.elastic.tensors().items():
            if name not in part.structure.graph.constants:
                tensor.add_(torch.rand(tensor.shape, generator=rng).to(tensor) * 0.1)
    return net, part


def same_backbones(whole: SuperNet, part: SuperNet) -> Iterator[tuple[Config, Config]]:
    """Random SubNets of the whole network, and of the backbone alone: variables of one name take choices of one index.

    No alternative to the head stands for a part of the backbone, too.
    """
    alone = {each.name for each in part.space.variables}
    for codes in whole.space.random_codes(SUBNETS, np.random.default_rng(3)):
        found = {each.name: int(code) for each, code in zip(whole.space.variables, codes, strict=True)}
        of_head = {each.name: each.default for each in whole.space.variables if each.name not in alone}
        yield (
            whole.space.canonical(whole.space.decode(codes) | of_head),
            part.space.decode(np.array([found[each.name] for each in part.space.variables])),
        )


def read_by_the_classifier(part: SuperNet, config: Config) -> set[str]:
    """The feature maps that a SubNet gives."""
    nodes, _ = part.structure.nodes(part.space.row(config))
    return {node.inputs[0] for node in nodes if node.op == "ReduceMean"}


@torch.no_grad()
def values(net: SuperNet, config: Config, x_BCHW: torch.Tensor, names: set[str]) -> dict[str, torch.Tensor]:
    net.elastic.activate(config)
    net.elastic.eval()
    return net.elastic.watched([x_BCHW], names)[1]


@pytest.mark.few("segmenter")
@pytest.mark.parametrize("name", NETWORKS)
def test_the_backbone_computes_in_the_whole_what_it_computes_alone(name: str) -> None:
    net, part = pair(NETWORKS[name])
    before = {key: tensor.clone() for key, tensor in net.elastic.tensors().items()}
    taken = net.take("backbone", part)
    x_BCHW = torch.rand(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(2))
    chosen = set()
    for configs in same_backbones(net, part):
        maps = read_by_the_classifier(part, configs[1])
        assert len(maps) == (6 if name == "detector" else 3)
        of_whole, alone = (values(each, own, x_BCHW, maps) for each, own in zip((net, part), configs, strict=True))
        assert of_whole.keys() == alone.keys() == maps
        assert all(torch.equal(of_whole[value], alone[value]) for value in maps)
        chosen |= {choice for choice in configs[0].values() if isinstance(choice, str)}
    assert len(chosen) > 1
    for key, tensor in net.elastic.tensors().items():
        assert torch.equal(tensor, part.elastic.tensor(key) if key in taken else before[key])
    assert not [key for key in before if key.startswith("backbone.") and key not in taken]


def test_the_largest_subnet_is_the_network_with_the_joined_backbone() -> None:
    net, part = pair(Segmenter)
    joined = Segmenter(3, 3).eval()
    state = net.elastic.tensors() | {name: part.elastic.tensor(name) for name in net.take("backbone", part)}
    joined.load_state_dict(
        {name: state[name] for name in joined.state_dict() if "num_batches" not in name}, strict=False
    )
    x_BCHW = torch.rand(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(2))
    net.elastic.activate(net.max_config)
    net.elastic.eval()
    with torch.no_grad():
        torch.testing.assert_close(net.elastic(x_BCHW), joined(x_BCHW), atol=1e-4, rtol=0)


class Wider(Segmenter):
    def __init__(self, classes: int, channels: int) -> None:
        super().__init__(classes, channels)
        wide = nn.Conv2d(channels, small_fpn.WIDTHS[0], 5, stride=2, padding=2, bias=False)
        self.backbone.set_submodule("stages.0.0.0", wide)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("make", "wish", "part", "line"),
    [
        (
            Segmenter,
            {**WISH, "alternatives": ["low_rank"]},
            "backbone",
            "alternative 'pruned.* in one of the networks alone",
        ),
        (
            Wider,
            WISH,
            "backbone",
            r"tensor 'backbone.stages.0.0.0.weight' has shapes \(16, 3, 3, 3\) and \(16, 3, 5, 5\)",
        ),
        (small_detectors.ssdlite, WISH, "backbone", "tensor 'backbone.* is in one of the networks alone"),
        (Segmenter, WISH, "head", "no tensor of the network lies there"),
    ],
)
def test_another_part_is_refused_in_one_line_and_nothing_is_taken(
    make: Callable[[int, int], nn.Module], wish: SpaceSpec, part: str, line: str
) -> None:
    net, _ = pair(Segmenter)
    _, other = pair(make, wish)
    before = {key: tensor.clone() for key, tensor in net.elastic.tensors().items()}
    with pytest.raises(JoinError, match=line) as refused:
        net.take(part, other)
    assert "\n" not in str(refused.value)
    assert all(torch.equal(before[key], tensor) for key, tensor in net.elastic.tensors().items())
