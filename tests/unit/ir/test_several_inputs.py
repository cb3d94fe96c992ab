"""Networks with several inputs and several outputs: images of two sizes, images beside tokens, tokens beside masks."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import tailor_ir
from tailor_ir.reading.inputs import GivenExample
from tests.support.ir.invariants import ORIGINAL_TOLERANCE, check_network, difference, random_inputs
from tests.support.ir.networks import ResidualBlock, perturb

TOKENS, LENGTH, SIDE = 50, 8, 32


class ImageAndText(nn.Module):
    """An image and tokens to classes and to one score, which are two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks = nn.Sequential(*(ResidualBlock(16, 32) for _ in range(2)))
        self.embedding = nn.Embedding(TOKENS, 24)
        self.text = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24))
        self.joined = nn.Sequential(nn.Linear(40, 32), nn.ReLU())
        self.classes, self.score = nn.Linear(32, 5), nn.Linear(32, 1)

    def forward(self, image: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen = self.blocks(self.stem(image)).mean((2, 3))
        words = self.embedding(tokens)
        both = self.joined(torch.cat((seen, (words + self.text(words)).mean(1)), 1))
        return self.classes(both), self.score(both)


class ColourAndDepth(nn.Module):
    """A colour image, and a depth image of half its size that joins it after the stem."""

    def __init__(self) -> None:
        super().__init__()
        self.colour = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.depth = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.join = nn.Conv2d(24, 16, 1)
        self.blocks = nn.Sequential(*(ResidualBlock(16, 32) for _ in range(2)))
        self.head = nn.Linear(16, 5)

    def forward(self, colour: torch.Tensor, depth: torch.Tensor) -> torch.Tensor:
        both = self.join(torch.cat((self.colour(colour), self.depth(depth)), 1))
        return self.head(self.blocks(both).mean((2, 3)))


class MaskedText(nn.Module):
    """Tokens to classes; tokens whose mask is 0 are no part of the mean. Both inputs are integers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 5)

    def forward(
        self, tokens: torch.Tensor, scale: float = 1.0, *, mask: torch.Tensor
    ) -> dict[str, torch.Tensor | list[torch.Tensor]]:
        shares = mask.unsqueeze(-1).float() + 0.1
        words = self.encoder(self.embedding(tokens) * scale)
        return {"classes": self.head((words * shares).sum(1) / shares.sum(1)), "words": [words]}


def tokens() -> torch.Tensor:
    return torch.arange(LENGTH)[None] * (TOKENS - 1) // (LENGTH - 1)


def image(channels: int = 3, side: int = SIDE) -> torch.Tensor:
    return torch.randn(1, channels, side, side, generator=torch.Generator().manual_seed(0))


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], GivenExample], tuple[str, ...]]] = {
    "an image and tokens": (ImageAndText, lambda: (image(), tokens()), ("image", "tokens")),
    "images of two sizes": (ColourAndDepth, lambda: (image(), image(1, SIDE // 2)), ("colour", "depth")),
    "tokens and a mask, by name": (
        MaskedText,
        lambda: {"mask": torch.tensor([[0, 1] * (LENGTH // 2)]), "tokens": tokens()},
        ("mask", "tokens"),
    ),
}


def made(name: str) -> tuple[nn.Module, GivenExample]:
    torch.manual_seed(0)
    network, example, _ = CASES[name]
    return perturb(network()), example()


@pytest.mark.long_cases("tokens and a mask, by name")
@pytest.mark.parametrize("name", CASES)
def test_subnets_of_several_inputs_are_equal_in_three_forms(name: str, tmp_path: Path) -> None:
    model, example = made(name)
    net = check_network(model, example, tmp_path, subnets=2)
    assert tuple(net.input_shapes(net.max_config)) == CASES[name][2]
    assert net.space.distinct > 20
    with pytest.raises(tailor_ir.InputError, match=r"2 inputs .*; allowed: one, where a single shape is asked for"):
        net.input_shape(net.max_config)
    with pytest.raises(tailor_ir.InputError, match="called with 1 inputs; allowed: 2"):
        net.elastic(tokens())


def test_images_follow_one_resolution_in_their_ratio() -> None:
    network, example = made("images of two sizes")
    net = tailor_ir.compile(network, example)
    (resolution,) = (v for v in net.space.variables if v.kind == "resolution")
    for side in resolution.choices:
        shapes = net.input_shapes({"resolution": side}, batch=2)
        assert shapes == {"colour": (2, 3, side, side), "depth": (2, 1, int(side) // 2, int(side) // 2)}
    assert len(resolution.choices) > 1


def test_an_image_beside_tokens_has_a_resolution() -> None:
    network, example = made("an image and tokens")
    net = tailor_ir.compile(network, example)
    smallest = net.input_shapes(net.min_config)
    assert smallest["tokens"] == (1, LENGTH)
    assert smallest["image"][2] < SIDE


def test_files_keep_the_types_of_their_inputs(tmp_path: Path) -> None:
    model, example = made("an image and tokens")
    net = tailor_ir.compile(model, example)
    net.save(tmp_path / "net")
    loaded = tailor_ir.load(tmp_path / "net")
    loaded.export(loaded.min_config, tmp_path / "small.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "small.onnx", providers=["CPUExecutionProvider"])
    assert {one.name: one.type for one in session.get_inputs()} == {"image": "tensor(float)", "tokens": "tensor(int64)"}
    again = tailor_ir.compile(tmp_path / "small.onnx")
    x = random_inputs(again, again.max_config, example, seed=1, batch=1)
    with torch.no_grad():
        expected = loaded.build(loaded.min_config)(*x)
        assert difference(expected, again.elastic.eval()(*x)) <= ORIGINAL_TOLERANCE


def test_statistics_are_taken_from_batches_of_all_inputs() -> None:
    model, example = made("images of two sizes")
    net = tailor_ir.compile(model, example)
    config = net.space.sample(np.random.default_rng(0))
    batches = [random_inputs(net, config, example, seed, batch=4) for seed in range(2)]
    found = net.recalibrate(config, batches)
    net.elastic.eval().activate(config, found)
    with torch.no_grad():
        assert difference(net.build(config, found)(*batches[0]), net.elastic(*batches[0])) <= ORIGINAL_TOLERANCE
        net.elastic.activate(config)
        assert difference(net.build(config, found)(*batches[0]), net.elastic(*batches[0])) > 1e-3
