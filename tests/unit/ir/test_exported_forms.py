"""What exporters write in ways of their own: batches filled in, branches that shapes decide, operators without a symbol."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tailor_ir
from tests.support.ir.invariants import check_network
from tests.support.ir.networks import perturb


class Written(nn.Module):
    """Layers, and a forward that is given."""

    def __init__(self, forward: Callable[[nn.ModuleDict, torch.Tensor], torch.Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(layers)
        self.given = forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.given(self.layers, x)


def check(model: nn.Module, sample: torch.Tensor, folder: Path) -> tailor_ir.SuperNet:
    with torch.no_grad():
        for parameter in model.parameters():  # biases that start equal could be taken for each other
            parameter.add_(0.01 * torch.randn(parameter.shape))
    return check_network(perturb(model.eval()), sample, folder, subnets=3)


def image(channels: int = 3, size: int = 32) -> torch.Tensor:
    return torch.randn(1, channels, size, size, generator=torch.Generator().manual_seed(0))


def sequence(steps: int = 6, features: int = 16) -> torch.Tensor:
    return torch.randn(1, steps, features, generator=torch.Generator().manual_seed(0))


def test_a_cell_that_starts_from_zeros_for_each_sample(tmp_path: Path) -> None:
    def forward(layers: nn.ModuleDict, x: torch.Tensor) -> torch.Tensor:
        h, c = torch.zeros(x.shape[0], 32), torch.zeros(x.shape[0], 32)
        for step in range(x.shape[1]):
            h, c = layers["cell"](x[:, step], (h, c))
        return layers["answer"](h)

    check(Written(forward, cell=nn.LSTMCell(16, 32), answer=nn.Linear(32, 4)), sequence(), tmp_path)


def test_constants_that_differ_between_samples_are_refused() -> None:
    def forward(layers: nn.ModuleDict, x: torch.Tensor) -> torch.Tensor:
        return layers["answer"](x) + torch.arange(x.shape[0]).float()[:, None]

    with pytest.raises(
        tailor_ir.ImportFailed,
        match=r"operator 'Add' at .*: its numbers follow the batch \(.* for 3 samples, .* for 5\); allowed: the same",
    ):
        tailor_ir.compile(Written(forward, answer=nn.Linear(8, 4)).eval(), torch.randn(1, 8))


def test_learned_queries_and_states_repeated_for_each_sample(tmp_path: Path) -> None:
    class Queries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.state = nn.Parameter(torch.randn(5, 32)), nn.Parameter(torch.randn(1, 1, 32))
            self.table = nn.Parameter(torch.randn(1, 1, 32))
            self.recurrent = nn.GRU(16, 32, batch_first=True)
            self.norm = nn.LayerNorm(32)
            self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
            self.answer = nn.Linear(32, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.recurrent(x, self.state.expand(-1, x.shape[0], -1).contiguous())[0]
            y = y + self.table.expand(1, x.shape[1], 32)
            q = self.norm(self.query).unsqueeze(0).repeat(x.shape[0], 1, 1)
            return self.answer(self.attention(q, y, y)[0])

    check(Queries(), sequence(), tmp_path)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_plain_recurrent_layers(activation: str, tmp_path: Path) -> None:
    layer = nn.RNN(16, 32, 2, nonlinearity=activation, batch_first=True, bidirectional=True)
    net = check(
        Written(lambda given, x: given["answer"](given["r"](x)[0][:, -1]), r=layer, answer=nn.Linear(64, 4)),
        sequence(),
        tmp_path,
    )
    assert "RNN" in {node.op for node in net.structure.graph.nodes}


def test_images_are_turned_round(tmp_path: Path) -> None:
    def forward(layers: nn.ModuleDict, x: torch.Tensor) -> torch.Tensor:
        x = layers["a"](x)
        x = x + layers["b"](torch.flip(x, [2, 3]))
        return layers["answer"]((x * torch.flip(layers["c"](x), [1])).mean((2, 3)))

    layers = {"a": nn.Conv2d(3, 32, 3, 2, 1), "b": nn.Conv2d(32, 32, 3, padding=1), "c": nn.Conv2d(32, 32, 1)}
    net = check(Written(forward, **layers, answer=nn.Linear(32, 4)), image(), tmp_path)
    assert "resolution" in {v.kind for v in net.space.variables}


def test_samples_side_by_side_in_the_batch_are_taken_apart_again(tmp_path: Path) -> None:
    def forward(layers: nn.ModuleDict, x: torch.Tensor) -> torch.Tensor:
        both = layers["body"](torch.cat([x, -x], 0)).mean((2, 3))
        first, second = both.chunk(2, 0)
        left, right = torch.split(layers["more"](both), x.shape[0], 0)
        return layers["answer"](torch.cat([first * left, second - right], 1))

    body = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1))
    check(Written(forward, body=body, more=nn.Linear(32, 32), answer=nn.Linear(64, 4)), image(), tmp_path)


@pytest.mark.parametrize(
    "pool",
    [nn.AdaptiveAvgPool2d(7), nn.AdaptiveMaxPool2d((5, 8)), nn.AdaptiveAvgPool2d((1, None)), nn.AdaptiveMaxPool2d(4)],
)
def test_adaptive_pooling_to_any_size(pool: nn.Module, tmp_path: Path) -> None:
    size = pool(torch.zeros(1, 32, 16, 16)).numel()
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1), pool, nn.Flatten(), nn.Linear(size, 32), nn.ReLU(), nn.Linear(32, 4)
    )
    check(model, image(), tmp_path)


def test_blocks_of_images_are_taken_out_and_added_up_again(tmp_path: Path) -> None:
    def forward(layers: nn.ModuleDict, x: torch.Tensor) -> torch.Tensor:
        blocks = F.unfold(layers["stem"](x), 3, padding=1, stride=2).transpose(1, 2)
        blocks = layers["back"](F.gelu(layers["there"](blocks))).transpose(1, 2)
        return F.fold(blocks, x.shape[2:], 3, padding=1, stride=2)

    layers = {"stem": nn.Conv2d(3, 8, 3, padding=1), "there": nn.Linear(72, 64), "back": nn.Linear(64, 72)}
    net = check(Written(forward, **layers), image(), tmp_path)
    assert {"resolution", "width_mult"} <= {v.kind for v in net.space.variables}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "norm",
    [
        nn.utils.parametrizations.spectral_norm,
        nn.utils.spectral_norm,
        nn.utils.parametrizations.weight_norm,
        nn.utils.weight_norm,
    ],
    ids=["spectral", "spectral, old", "weight", "weight, old"],
)
def test_reparametrised_weights(norm: Callable[[nn.Module], nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = [norm(nn.Conv2d(3, 32, 3, 2, 1)), nn.ReLU(), norm(nn.Conv2d(32, 32, 3, padding=1)), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), norm(nn.Linear(32, 4))).eval()
    with torch.no_grad():
        model(image())
    net = tailor_ir.compile(model, image())
    config = net.min_config
    x = torch.randn(net.input_shape(config, 2))
    net.elastic.eval()
    with torch.no_grad():
        assert torch.allclose(
            net.elastic(torch.cat([image(), -image()])), model(torch.cat([image(), -image()])), atol=1e-5
        )
        net.elastic.activate(config)
        assert torch.allclose(net.elastic(x), net.build(config)(x), atol=1e-5)
    assert net.macs(config) < net.macs(net.max_config)


def test_instance_norm_with_running_statistics_is_a_batch_norm(tmp_path: Path) -> None:
    norm = nn.InstanceNorm2d(32, affine=True, track_running_stats=True)
    assert norm.running_mean is not None
    norm.running_mean.uniform_(-0.2, 0.2)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), norm, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4)
    )
    net = check(model, image(), tmp_path)
    assert "BatchNormalization" in {node.op for node in net.structure.graph.nodes}


def test_branches_that_shapes_decide_are_taken(tmp_path: Path) -> None:
    """torch.tile is exported with an If for the rank of its operand."""

    def forward(layers: nn.ModuleDict, x: torch.Tensor) -> torch.Tensor:
        x = layers["stem"](x)
        return layers["answer"](torch.tile(x, (2, 1)).mean(2))

    model = Written(forward, stem=nn.Conv2d(3, 32, 3, padding=1), answer=nn.Linear(32, 4))
    check(model, image(), tmp_path)


def test_repeated_entries_leave_other_constants_alone(tmp_path: Path) -> None:
    """torch's exporter changes all -1 of a network where entries are repeated along the last axis."""

    def forward(layers: nn.ModuleDict, x: torch.Tensor) -> torch.Tensor:
        y = layers["stem"](x).flatten(2).transpose(1, 2)
        y = y.repeat_interleave(2, -1)
        return layers["answer"](y.unflatten(1, (16, -1)).mean((1, 2)).expand(x.shape[0], -1))

    check(Written(forward, stem=nn.Conv2d(3, 16, 3, padding=1), answer=nn.Linear(32, 4)), image(), tmp_path)


def test_a_threshold_with_another_value(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.Threshold(0.1, 0.2), nn.Conv2d(32, 4, 16), nn.Flatten())
    check(model, image(), tmp_path)


def test_channels_beside_positions_are_elastic(tmp_path: Path) -> None:
    """A linear map over all positions keeps the resolution, not the channels that it reads and gives."""
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 64, 64), nn.ReLU(), nn.Linear(64, 4)
    )
    net = check(model, image(size=16), tmp_path)
    assert "resolution" not in {v.kind for v in net.space.variables}
    smallest = net.build(net.min_config)
    (convolution,) = (m for m in smallest.modules() if isinstance(m, nn.Conv2d))
    first, second = (m for m in smallest.modules() if isinstance(m, nn.Linear))
    assert convolution.out_channels < 32
    assert first.in_features == 64 * convolution.out_channels
    assert first.out_features == second.in_features < 64


def test_weights_of_each_sample_s_own(tmp_path: Path) -> None:
    """Conditionally parametrised convolutions run the samples as groups. Source: CondConv (NeurIPS 2019)."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.routes = nn.Conv2d(3, 32, 3, 2, 1), nn.Linear(32, 4)
            self.weight = nn.Parameter(0.1 * torch.randn(4, 16 * 32 * 9))
            self.answer = nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            samples, channels, height, width = x.shape
            weight = (torch.sigmoid(self.routes(x.mean((2, 3)))) @ self.weight).reshape(samples * 16, channels, 3, 3)
            y = F.conv2d(x.reshape(1, samples * channels, height, width), weight, padding=1, groups=samples)
            return self.answer(y.reshape(samples, 16, height, width).mean((2, 3)))

    net = check(Mixed(), image(), tmp_path)
    assert "resolution" in {v.kind for v in net.space.variables}


def test_positions_that_layers_over_channels_are_applied_to_follow_the_resolution(tmp_path: Path) -> None:
    class Placed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.places = nn.Conv2d(3, 32, 4, 4), nn.Conv2d(2, 32, 1)
            self.answer = nn.Linear(32, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            lines = torch.linspace(-1, 1, x.shape[2])
            grid = torch.stack(torch.meshgrid(lines, lines, indexing="ij"))[None].repeat(x.shape[0], 1, 1, 1)
            return self.answer(torch.relu(x + self.places(grid)).mean((2, 3)))

    net = check(Placed(), image(), tmp_path)
    assert "resolution" in {v.kind for v in net.space.variables}


LAYERS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


@pytest.mark.long_cases("lstm-both directions", "gru-both directions")
@pytest.mark.parametrize("both", [False, True], ids=["forward", "both directions"])
@pytest.mark.parametrize("kind", LAYERS)
def test_hidden_features_of_recurrent_layers_are_elastic(kind: str, both: bool, tmp_path: Path) -> None:
    layer = LAYERS[kind](16, 32, 2, batch_first=True, bidirectional=both)
    model = Written(
        lambda given, x: given["answer"](given["r"](x)[0].mean(1)), r=layer, answer=nn.Linear(64 if both else 32, 4)
    )
    net = check(model, sequence(), tmp_path)
    assert net.macs(net.min_config) < 0.6 * net.macs(net.max_config)
    path = tmp_path / "net.onnx"
    net.export(net.max_config, path)
    stored = tailor_ir.compile(path)
    assert [v.choices for v in stored.space.variables] == [v.choices for v in net.space.variables]


def test_the_largest_entries_and_entries_by_index(tmp_path: Path) -> None:
    def forward(layers: nn.ModuleDict, x: torch.Tensor) -> torch.Tensor:
        x = layers["stem"](x)
        scores, places = layers["gate"](x).topk(2, -1)
        gates = torch.zeros(x.shape[0], x.shape[1], 4).scatter(-1, places, scores.softmax(-1))
        y = torch.stack([layers[f"expert{i}"](x) for i in range(4)], -1)
        order = x.mean(-1).argsort(1, descending=True)
        y = x + torch.relu((y * gates.unsqueeze(2)).sum(-1))
        y = torch.gather(y, 1, order[:, :4, None].expand(-1, -1, y.shape[2]))
        return layers["answer"](y.mean(1))

    experts = {f"expert{i}": nn.Linear(32, 32) for i in range(4)}
    layers = {"stem": nn.Linear(16, 32), "gate": nn.Linear(32, 4), "answer": nn.Linear(32, 4), **experts}
    check(Written(forward, **layers), sequence(), tmp_path)


def test_images_at_coordinates(tmp_path: Path) -> None:
    """A spatial transformer. Source: Jaderberg et al. (NeurIPS 2015)."""

    def forward(layers: nn.ModuleDict, x: torch.Tensor) -> torch.Tensor:
        x = layers["stem"](x)
        moves = 0.1 * layers["moves"](x.mean((2, 3))).view(-1, 2, 3) + torch.eye(2, 3)
        grid = F.affine_grid(moves, list(x.shape), align_corners=False)
        return layers["answer"](F.grid_sample(x, grid, align_corners=False).amax((2, 3)))

    layers = {"stem": nn.Conv2d(3, 32, 3, 2, 1), "moves": nn.Linear(32, 6), "answer": nn.Linear(32, 4)}
    check(Written(forward, **layers), image(), tmp_path)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_interpolation_that_averages(mode: str, tmp_path: Path) -> None:
    def forward(layers: nn.ModuleDict, x: torch.Tensor) -> torch.Tensor:
        x = F.interpolate(layers["stem"](x), size=(12, 20), mode=mode, antialias=True)
        return layers["answer"](torch.relu(x).mean((2, 3)))

    check(Written(forward, stem=nn.Conv2d(3, 32, 3, padding=1), answer=nn.Linear(32, 4)), image(), tmp_path)


def test_an_axis_taken_apart_by_slices_is_cut_in_each_piece(tmp_path: Path) -> None:
    def forward(layers: nn.ModuleDict, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(layers["stem"](x))
        both = layers["both"](x)
        x = layers["project"](both[:, :48] * torch.sigmoid(both[:, 48:]))
        return layers["answer"](x.mean((2, 3)))

    layers = {
        "stem": nn.Conv2d(3, 32, 3, 2, 1),
        "both": nn.Conv2d(32, 96, 1),
        "project": nn.Conv2d(48, 32, 1),
        "answer": nn.Linear(32, 4),
    }
    net = check(Written(forward, **layers), image(), tmp_path)
    smallest = net.build(net.min_config).state_dict()
    assert smallest["both_Conv.weight"].shape[0] == 2 * smallest["project_Conv.weight"].shape[1] < 96


def test_channels_joined_and_taken_apart_into_groups(tmp_path: Path) -> None:
    """A weight for each branch, as in selective kernels. Source: Li et al. (CVPR 2019)."""

    def forward(layers: nn.ModuleDict, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(layers["stem"](x))
        branches = torch.cat([layers["a"](x), layers["b"](x)], 1)
        branches = branches.view(-1, 2, 64, *branches.shape[2:])
        return layers["answer"](torch.relu(branches.sum(1)).mean((2, 3)))

    layers = {
        "stem": nn.Conv2d(3, 32, 3, 2, 1),
        "a": nn.Conv2d(32, 64, 3, padding=1),
        "b": nn.Conv2d(32, 64, 1),
        "answer": nn.Linear(64, 4),
    }
    net = check(Written(forward, **layers), image(), tmp_path)
    smallest = net.build(net.min_config).state_dict()
    assert smallest["a_Conv.weight"].shape[0] == smallest["b_Conv.weight"].shape[0] < 64


def test_images_that_are_rolled_keep_their_elastic_resolution(tmp_path: Path) -> None:
    """As in shifted windows. Source: Liu et al. (ICCV 2021)."""

    def forward(layers: nn.ModuleDict, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(layers["stem"](x)).roll((-3, -3), (2, 3))
        return layers["answer"](torch.relu(layers["conv"](x)).mean((2, 3)))

    layers = {"stem": nn.Conv2d(3, 32, 3, 2, 1), "conv": nn.Conv2d(32, 48, 3, padding=1), "answer": nn.Linear(48, 4)}
    net = check(Written(forward, **layers), image(), tmp_path)
    choices = {variable.name: variable.choices for variable in net.space.variables}
    assert len(choices["resolution"]) > 1
