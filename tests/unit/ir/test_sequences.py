"""Token sequences: their length is a variable, and recurrent layers have elastic hidden sizes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tailor_ir
from tests.support.ir.invariants import ORIGINAL_TOLERANCE, check_network, difference, random_input

TOKENS, LENGTH, WIDTH, CLASSES = 40, 16, 128, 5
GATES = {"LSTM": 4, "GRU": 3}
KINDS = [(kind, both) for kind in GATES for both in (False, True)]


class RecurrentClassifier(nn.Module):
    """Tokens to classes by recurrent layers, in one direction or both."""

    def __init__(self, kind: str, *, both: bool, width: int = WIDTH, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, width)
        self.layers = getattr(nn, kind)(width, width, layers, batch_first=True, bidirectional=both)
        self.head = nn.Linear((2 if both else 1) * width, CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found, _ = self.layers(self.embedding(tokens))
        return self.head(found[:, -1])


class CausalText(nn.Module):
    """Attention under a stored mask, with a stored embedding of each position; the first token answers."""

    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 32)
        self.places = nn.Embedding(LENGTH, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        self.head = nn.Linear(32, CLASSES)
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), float("-inf")).triu(1))
        self.register_buffer("ids", torch.arange(LENGTH)[None])

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        words = self.layer(self.embedding(tokens) + self.places(self.ids), src_mask=self.mask)
        return self.head(words[:, 0]), self.head(words).mean(1)


def tokens() -> torch.Tensor:
    return torch.arange(LENGTH)[None] * (TOKENS - 1) // (LENGTH - 1)


def recurrent(kind: str, *, both: bool) -> nn.Module:
    torch.manual_seed(0)
    return RecurrentClassifier(kind, both=both).eval()


@pytest.mark.few("LSTM-False", "GRU-False")
@pytest.mark.parametrize(("kind", "both"), KINDS)
def test_recurrent_classifiers_have_many_subnets_equal_in_three_forms(kind: str, both: bool, tmp_path: Path) -> None:
    model = recurrent(kind, both=both)
    net = check_network(model, tokens(), tmp_path, subnets=1)
    assert net.space.distinct >= 10_000
    assert net.macs(net.min_config) <= 0.25 * net.macs(net.max_config)
    assert {v.kind for v in net.space.variables} == {"sequence_length", "width_mult"}
    net.sort_channels()
    net.elastic.activate(net.max_config)
    x = random_input((3, LENGTH), tokens(), seed=1)
    with torch.no_grad():
        assert difference(model(x), net.elastic(x)) <= ORIGINAL_TOLERANCE


@pytest.mark.parametrize(("kind", "both"), KINDS)
@torch.no_grad()
def test_a_narrow_recurrent_layer_has_the_first_rows_of_every_gate(kind: str, both: bool) -> None:
    model, gates, ways = recurrent(kind, both=both), GATES[kind], 2 if both else 1
    net = tailor_ir.compile(model, tokens())
    net.elastic.eval().activate({v.name: 0.5 for v in net.space.variables if v.kind == "width_mult"})
    half = WIDTH // 2
    narrow = RecurrentClassifier(kind, both=both, width=half).eval()
    shapes = {"embedding.weight": (TOKENS, WIDTH), "head.weight": (CLASSES, ways, WIDTH), "head.bias": (CLASSES,)}
    for name, whole in model.state_dict().items():
        rest = (ways, WIDTH) if "weight_ih_l1" in name else (WIDTH,) if "weight" in name else ()
        apart = whole.reshape(shapes.get(name, (gates, WIDTH, *rest)))
        for dim, size in enumerate(apart.shape):
            apart = apart.narrow(dim, 0, half) if size == WIDTH else apart
        own = narrow.state_dict()[name]
        own.copy_(apart.reshape(own.shape))
    x = random_input((3, LENGTH), tokens(), seed=0)
    assert difference(narrow(x), net.elastic(x)) <= ORIGINAL_TOLERANCE


def test_stored_positions_and_masks_follow_the_length(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = CausalText().eval()
    net = check_network(model, tokens(), tmp_path, subnets=3)
    (length,) = (v for v in net.space.variables if v.kind == "sequence_length")
    assert length.choices == (2, 4, 8, 12, 16)
    net.save(tmp_path / "net")
    assert tailor_ir.load(tmp_path / "net").space == net.space
    for steps in (2, 12):
        net.elastic.eval().activate({"sequence_length": steps})
        x = random_input(net.input_shape({"sequence_length": steps}, 2), tokens(), seed=0)
        assert x.shape == (2, steps)
        with torch.no_grad():
            words = model.embedding(x) + model.places.weight[:steps]
            words = model.layer(words, src_mask=model.mask[:steps, :steps])
            expected = model.head(words[:, 0]), model.head(words).mean(1)
            assert difference(expected, net.elastic(x)) <= ORIGINAL_TOLERANCE


def test_lengths_are_chosen_and_refused_in_one_line() -> None:
    model = recurrent("GRU", both=False)
    net = tailor_ir.compile(model, tokens(), {"sequence_length": [5, 16]})
    assert [v.choices for v in net.space.variables] == [(5, 16)]
    assert net.input_shape(net.space.sample(np.random.default_rng(0)))[0] == 1
    for wish, line in (
        ({"sequence_length": [5, 17]}, "sequence_length 17: larger than the network's own, 16; allowed: up to 16"),
        ({"sequence_length": [5]}, "sequence_length=.*: must include the network's own, 16"),
        ({"resolution": [8, 16]}, "no variable matches 'resolution'; allowed: sequence_length"),
    ):
        with pytest.raises(tailor_ir.SpaceError, match=line):
            tailor_ir.compile(model, tokens(), wish)


class Bag(nn.Module):
    """Tokens to classes by one row for a whole bag; token 0 is padding, where `padded`."""

    def __init__(self, mode: str, padded: bool) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(TOKENS, 16, mode=mode, padding_idx=0 if padded else None)
        self.head = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x_BT: torch.Tensor) -> torch.Tensor:
        return self.head(self.bag(x_BT))


@pytest.mark.parametrize(("mode", "padded"), [("mean", False), ("mean", True), ("sum", True), ("max", False)])
def test_bags_of_tokens_are_look_ups_and_a_reduction(mode: str, padded: bool) -> None:
    torch.manual_seed(0)
    model = Bag(mode, padded).eval()
    net = tailor_ir.compile(model, torch.tensor([[0, 3, 0, 2, 1]]))
    assert "Embedding" in {node.op for node in net.structure.graph}
    for x_BT in (torch.tensor([[0, 0, 4, 0, 1], [2, 3, 0, 1, 0]]), torch.zeros(1, 5, dtype=torch.int64)):
        torch.testing.assert_close(net.elastic.eval()(x_BT), model(x_BT), rtol=1e-5, atol=1e-6)
    net.check_forms(where="test")
