"""Networks that are no image classifiers: text, sound, segmentation."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tailor_ir
from tailor_ir.reading.value_reads import tensors_in
from tests.support.ir.invariants import ORIGINAL_TOLERANCE, check_network, difference, operators_of, outputs_of
from tests.support.ir.networks import perturb

TOKENS, LENGTH, WIDTH = 100, 12, 32


class TextEncoder(nn.Module):
    """Tokens to classes; token 0 is padding, which nothing attends to."""

    def __init__(self, masked: bool, norm_first: bool) -> None:
        super().__init__()
        self.masked = masked
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.positions = nn.Parameter(torch.randn(1, LENGTH, WIDTH) * 0.1)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, activation="gelu", batch_first=True, norm_first=norm_first
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head: nn.Module = nn.Linear(WIDTH, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = tokens.eq(0) if self.masked else None
        return self.head(self.encoder(self.embedding(tokens) + self.positions, src_key_padding_mask=mask).mean(1))


class SoundNet(nn.Module):
    """A waveform to classes by one-dimensional convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(1, 16, 16, 4, 8), nn.BatchNorm1d(16), nn.ReLU(), nn.MaxPool1d(4))
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(16, 32, 1),
                nn.BatchNorm1d(32),
                nn.ReLU(),
                nn.Conv1d(32, 32, 9, padding=4, groups=32),
                nn.BatchNorm1d(32),
                nn.ReLU(),
                nn.Conv1d(32, 16, 1),
            )
            for _ in range(2)
        )
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean(-1))


class Segmentation(nn.Module):
    """A class for each pixel, from three scales and the mean of the image, in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.down = nn.Sequential(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU())
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(32, 16, 1), nn.ReLU())
        self.wide = nn.Conv2d(32, 16, 3, padding=2, dilation=2)
        self.join = nn.Sequential(nn.Conv2d(32, 24, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU())
        self.head = nn.Conv2d(40, 5, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        fine = self.stem(x)
        coarse = self.down(fine)
        size = coarse.shape[-2:]
        mean = nn.functional.interpolate(self.pooled(coarse), size=size, mode="bilinear", align_corners=False)
        joined = self.join(torch.cat((self.wide(coarse), mean), 1))
        joined = nn.functional.interpolate(joined, size=fine.shape[-2:], mode="bilinear", align_corners=False)
        y = self.head(torch.cat((joined, fine), 1))
        return {"out": nn.functional.interpolate(y, size=x.shape[-2:], mode="bilinear", align_corners=False)}


class Answer(nn.Module):
    """The entry `out` of what a network gives."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x)["out"]


def tokens() -> torch.Tensor:
    return torch.arange(LENGTH)[None] * (TOKENS - 1) // (LENGTH - 1)


@pytest.mark.long
def test_text_encoder(tmp_path: Path) -> None:
    torch.manual_seed(0)
    for masked, norm_first in ((False, False), (True, True)):
        net = check_network(TextEncoder(masked, norm_first).eval(), tokens(), tmp_path)
        assert {v.kind for v in net.space.variables} >= {"depth", "expand_ratio", "heads"}
        assert "Embedding" in operators_of(net)


class TwoHeads(nn.Module):
    """Classes, and beside them what the last stage saw; the second head reads a value that a skipped block gives."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(16, 32, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 16, 1)) for _ in range(3)
        )
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor | list[torch.Tensor]]:
        features = [self.stem(x)]
        for block in self.blocks:
            features.append(features[-1] + block(features[-1]))
        return {"classes": self.head(features[-1].mean((2, 3))), "features": features[-2:]}


def test_every_output_is_given(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = perturb(TwoHeads())
    net = check_network(model, torch.randn(1, 3, 32, 32), tmp_path)
    kinds = {v.kind for v in net.space.variables}
    assert kinds >= {"resolution", "depth", "expand_ratio"}  # outputs keep their channels
    assert len(net.elastic(torch.randn(2, 3, 32, 32))) == len(outputs_of(model(torch.randn(2, 3, 32, 32)))) == 3


@dataclass
class Inner:
    """What a network saw on the way; `steps` are no tensors."""

    features: torch.Tensor
    steps: int
    means: tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Told:
    """Classes, and what the network saw on the way."""

    logits: torch.Tensor
    seen: Inner
    kept: dict[str, Inner] | None = None


class ToldInFields(nn.Module):
    """Answers a dataclass that has others inside, or the same in dictionaries."""

    def __init__(self, make: Callable[..., Any], make_inner: Callable[..., Any]) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 5)
        self.make, self.make_inner = make, make_inner

    def forward(self, x: torch.Tensor) -> object:
        features = self.conv(x)
        mean = features.mean((2, 3))
        seen = self.make_inner(features=features, steps=1, means=(mean, mean * 2))
        last = self.make_inner(features=features.relu(), steps=2, means=())
        return self.make(logits=self.head(mean), seen=seen, kept={"last": last})


def test_a_dataclass_is_compiled_as_a_dictionary_of_its_fields(tmp_path: Path) -> None:
    torch.manual_seed(0)
    fields, keys = ToldInFields(Told, Inner), ToldInFields(dict, dict)
    keys.load_state_dict(fields.state_dict())
    sample = torch.randn(1, 3, 8, 8)
    net, same = (tailor_ir.compile(model.eval(), sample) for model in (fields, keys))
    names = ("logits", "seen.features", "seen.means.0", "seen.means.1", "kept.last.features")
    assert net.structure.graph.outputs == same.structure.graph.outputs == names
    x = torch.randn(2, 3, 8, 8)
    assert all(map(torch.equal, net.elastic(x), same.elastic(x)))
    assert difference(tuple(tensors_in(fields(x))), net.elastic(x)) <= ORIGINAL_TOLERANCE
    net.check_forms(where="test")


def test_sound(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = check_network(perturb(SoundNet()), torch.randn(1, 1, 1024), tmp_path)
    assert {v.kind for v in net.space.variables} >= {"depth", "expand_ratio"}


def test_segmentation(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = check_network(perturb(Answer(Segmentation())), torch.randn(1, 3, 64, 64), tmp_path)
    assert {v.kind for v in net.space.variables} >= {"resolution", "width_mult"}
    config = {"resolution": net.space.variables[0].choices[0]}
    assert net.input_shape(config)[-1] < 64
    net.elastic.activate(config)
    assert net.elastic(torch.randn(net.input_shape(config))).shape == (1, 5, *net.input_shape(config)[2:])


@torch.no_grad()
def test_answers_in_a_dictionary_and_arguments_with_defaults() -> None:
    class WithOption(Segmentation):
        def forward(self, x: torch.Tensor, flip: bool = False) -> dict[str, torch.Tensor]:
            return super().forward(x.flip(-1) if flip else x)

    torch.manual_seed(0)
    model = perturb(WithOption())
    x = torch.randn(1, 3, 64, 64)
    net = tailor_ir.compile(model, x)
    net.elastic.eval().activate(net.max_config)
    assert net.structure.graph.inputs == ("input",)
    assert difference(model(x)["out"], net.elastic(x)) <= ORIGINAL_TOLERANCE


@pytest.mark.long
def test_ratios_are_of_the_features_of_a_token_where_these_must_stay(tmp_path: Path) -> None:
    encoder = TextEncoder(masked=False, norm_first=False)
    encoder.head = nn.Identity()
    encoder.eval()

    class Tokens(nn.Module):
        """Classes, and the features of every token, which are an output and so keep their width."""

        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = encoder.encoder, nn.Linear(WIDTH, 5)
            self.embedding = encoder.embedding

        def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            features = self.encoder(self.embedding(tokens))
            return self.head(features[:, 0]), features

    net = check_network(Tokens().eval(), torch.randint(0, TOKENS, (1, LENGTH)), tmp_path, subnets=2)
    ratios = [v.choices[-1] for v in net.space.variables if v.kind == "expand_ratio"]
    assert ratios == [4, 4]
