"""Networks that had hardly a choice have some: few channels, single paths, one sum around everything, shared heads, states."""

import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import tailor_ir
from tests.unit.ir.forms import check_forms, shaken

EXAMPLES = settings(max_examples=4, deadline=None, derandomize=True)
FORMS: dict[str, tuple[Callable[[int, int], nn.Module], tuple[int, ...], tuple[int, ...]]] = {
    "rows": (nn.Linear, (12,), ()),
    "signals": (lambda i, o: nn.Conv1d(i, o, 5, 2, 2), (3, 64), (2,)),
    "images": (lambda i, o: nn.Conv2d(i, o, 3, 2, 1), (3, 32, 32), (2, 3)),
}


class Row(nn.Module):
    """Layers one after the other."""

    def __init__(self, form: str, widths: list[int], last: int) -> None:
        super().__init__()
        layer, shape, self.places = FORMS[form]
        self.body = nn.Sequential()
        for before, after in zip((shape[0], *widths), widths, strict=False):
            self.body.extend((layer(before, after), nn.ReLU()))
        self.head = nn.Linear(widths[-1], last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body(x)
        return self.head(x.mean(self.places) if self.places else x)


@EXAMPLES
@given(
    form=st.sampled_from(sorted(FORMS)),
    widths=st.lists(st.sampled_from((6, 8, 12, 16, 32)), min_size=1, max_size=3),
    last=st.sampled_from((5, 16)),
)
def test_the_channels_of_a_row_of_layers_have_choices(form: str, widths: list[int], last: int) -> None:
    net = check_forms(Row(form, widths, last), torch.randn(1, *FORMS[form][1]))
    assert net is not None
    assert any(variable.kind == "width_mult" for variable in net.space.variables)
    assert net.space.distinct > 1


@pytest.mark.parametrize("size", [8, 12, 16, 24])
def test_few_channels_have_two_sizes_at_least(size: int) -> None:
    net = tailor_ir.compile(shaken(Row("signals", [size] * 3, 5)), torch.randn(1, 3, 64))
    for layer in net.structure.graph.parameters:
        (axis, *_) = net.structure.axis_map.axes[layer]
        if axis.groups and axis.size == size:
            sizes = {net.space.sizes(net.space.row(config))(axis) for config in (net.min_config, net.max_config)}
            assert len(sizes) == 2, layer


def test_every_linear_layer_of_a_perceptron_has_a_width_of_its_own() -> None:
    net = tailor_ir.compile(shaken(Row("rows", [128, 96, 64], 5)), torch.randn(1, 12))
    assert [variable.name for variable in net.space.variables] == [f"stage.{i}.width_mult" for i in (1, 2, 3)]


def test_a_space_of_one_subnet_says_why() -> None:
    net = tailor_ir.compile(nn.Linear(4, 5).eval(), torch.randn(1, 4))
    assert net.space.distinct == 1
    (remark,) = [line for line in net.remarks if "one SubNet" in line]
    assert "network output" in remark


FEW_WITH_REASONS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "layers of one width": (lambda: Row("rows", [64, 64, 64], 5), (12,), "can be left out have one width"),
    "groups from the input on": (
        lambda: nn.Sequential(nn.Conv1d(16, 16, 1, groups=4), nn.ReLU(), nn.Conv1d(16, 32, 1, groups=4)),
        (16, 8),
        "its 4 groups stay whole",
    ),
}


@pytest.mark.parametrize("name", FEW_WITH_REASONS)
def test_a_space_of_few_subnets_says_why(name: str) -> None:
    make, shape, reason = FEW_WITH_REASONS[name]
    net = tailor_ir.compile(shaken(make()), torch.randn(1, *shape))
    assert net.space.distinct <= 16
    (remark,) = net.remarks
    assert reason in remark
    asked = tailor_ir.compile(shaken(make()), torch.randn(1, *shape), {"*": "auto"})
    assert not asked.remarks, "few that were asked for"


def test_choices_are_the_same_whoever_asks_for_them() -> None:
    model = shaken(Row("signals", [16, 16], 5))
    own = tailor_ir.compile(model, torch.randn(1, 3, 64)).space.variables
    assert tailor_ir.compile(model, torch.randn(1, 3, 64), {"*": "auto"}).space.variables == own


# -- layers of equal size at the ends ------------------------------------------------------------------------------------


@EXAMPLES
@given(form=st.sampled_from(sorted(FORMS)), width=st.sampled_from((16, 32)), depth=st.integers(1, 3))
def test_a_last_layer_of_equal_size_fixes_no_width_before_it(form: str, width: int, depth: int) -> None:
    net = check_forms(Row(form, [width] * depth, width), torch.randn(1, *FORMS[form][1]))
    other = tailor_ir.compile(shaken(Row(form, [width] * depth, width + 2)), torch.randn(1, *FORMS[form][1]))
    assert net is not None
    assert net.space.variables == other.space.variables


class Recurrent(nn.Module):
    """Recurrent layers, of which one state or all of them are answers, too."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], layers: int, given_back: str, head: int) -> None:
        super().__init__()
        self.layers, self.given_back = kind(8, 32, layers, batch_first=True), given_back
        self.head = nn.Linear(32, head)

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        y, states = self.layers(x)
        state = states[0] if isinstance(states, tuple) else states
        if self.given_back == "read":
            return torch.relu(self.head(state[-1]))
        return (self.head(y), state[-1]) if self.given_back == "last" else self.head(y)


@pytest.mark.long
@EXAMPLES
@given(
    kind=st.sampled_from((nn.LSTM, nn.GRU)),
    layers=st.integers(2, 3),
    given_back=st.sampled_from(("none", "last", "read")),
    head=st.sampled_from((24, 32)),
)
def test_the_state_of_one_recurrent_layer_ties_no_other(
    kind: type[nn.LSTM] | type[nn.GRU], layers: int, given_back: str, head: int
) -> None:
    net = check_forms(Recurrent(kind, layers, given_back, head), torch.randn(1, 6, 8))
    assert net is not None
    widths = [variable for variable in net.space.variables if variable.kind == "width_mult"]
    assert len(widths) >= layers - (given_back == "last")


class ScaledWeights(nn.Module):
    """Two linear layers at each step of a signal, whose weights are scaled before they are used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 64), nn.Linear(64, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(x @ (self.first.weight.T / self.first.weight.std()))
        return hidden @ (self.second.weight.T / self.second.weight.std())


def test_layers_whose_weights_are_scaled_have_widths() -> None:
    net = check_forms(ScaledWeights(), torch.randn(1, 6, 12))
    assert net is not None
    assert [variable.kind for variable in net.space.variables] == ["width_mult"]


class OneStep(nn.Module):
    """A recurrent layer that reads one step and its states, and gives both: what a stream runs again and again."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.before, self.layer, self.head = nn.Linear(12, 64), kind(64, 32, batch_first=True), nn.Linear(32, 5)

    def forward(self, x: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, given = self.layer(torch.relu(self.before(x)), states if len(states) > 1 else states[0])
        return (self.head(y), *given) if isinstance(given, tuple) else (self.head(y), given)


@pytest.mark.parametrize(("kind", "states"), [(nn.GRU, 1), (nn.LSTM, 2)])
def test_a_recurrent_layer_of_one_step_has_widths_before_it(kind: type[nn.LSTM] | type[nn.GRU], states: int) -> None:
    one_step, more = (
        tailor_ir.compile(shaken(OneStep(kind)), (torch.randn(1, steps, 12), *[torch.randn(1, 1, 32)] * states))
        for steps in (1, 4)
    )
    assert one_step.space.variables == more.space.variables
    assert [variable.kind for variable in one_step.space.variables] == ["width_mult"]
    for config in (one_step.min_config, one_step.max_config):
        one_step.check_forms(config, where="one step")


# -- one sum around everything -------------------------------------------------------------------------------------------


class Residual(nn.Module):
    """x and (or less) what is computed from it."""

    def __init__(self, body: nn.Module, less: bool = False) -> None:
        super().__init__()
        self.body, self.less = body, less

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - self.body(x) if self.less else x + self.body(x)


def _around(kind: str, width: int, less: bool) -> nn.Module:
    """Networks that compute what is to be added to their input."""

    def conv(i: int, o: int) -> nn.Module:
        return nn.Conv2d(i, o, 3, padding=1)

    if kind == "layers":
        inner = [module for _ in range(3) for module in (conv(width, width), nn.BatchNorm2d(width), nn.ReLU())]
        return Residual(nn.Sequential(conv(3, width), nn.ReLU(), *inner, conv(width, 3)), less)
    if kind == "blocks":
        blocks = [Residual(nn.Sequential(conv(width, width), nn.ReLU(), conv(width, width))) for _ in range(3)]
        return nn.Sequential(conv(3, width), Residual(nn.Sequential(*blocks, conv(width, width)), less), conv(width, 3))
    sizes = (3, width, 2 * width, width, 3)
    maps = [conv(i, o) for i, o in itertools.pairwise(sizes)]
    return Residual(nn.Sequential(*(part for each in maps for part in (each, nn.ReLU()))), less)


@EXAMPLES
@given(kind=st.sampled_from(("layers", "blocks", "narrow")), width=st.sampled_from((16, 24)), less=st.booleans())
def test_a_sum_around_everything_leaves_what_it_goes_around_free(kind: str, width: int, less: bool) -> None:
    net = check_forms(_around(kind, width, less), torch.randn(1, 3, 16, 16))
    assert net is not None
    assert len([variable for variable in net.space.variables if variable.kind != "resolution"]) > 1


# -- heads ---------------------------------------------------------------------------------------------------------------


class Heads(nn.Module):
    """Attention whose keys and values are shared by groups of heads."""

    def __init__(self, heads: int, keys: int, how: str) -> None:
        super().__init__()
        self.heads, self.keys, self.how = heads, keys, how
        self.norm = nn.LayerNorm(32)
        self.q, self.o = nn.Linear(32, 8 * heads), nn.Linear(8 * heads, 32)
        self.k, self.v = nn.Linear(32, 8 * keys), nn.Linear(32, 8 * keys)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, (b, n, _) = self.norm(x), x.shape
        q = self.q(y).view(b, n, self.heads, 8).transpose(1, 2)
        k, v = (layer(y).view(b, n, self.keys, 8).transpose(1, 2) for layer in (self.k, self.v))
        times = self.heads // self.keys
        if self.how == "repeated":
            k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
        else:
            k, v = (t[:, :, None].expand(b, self.keys, times, n, 8).reshape(b, self.heads, n, 8) for t in (k, v))
        return x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, -1))


class Steps(nn.Module):
    """Blocks over steps, between two linear maps."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.i, self.blocks, self.o = nn.Linear(8, 32), nn.Sequential(*blocks), nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.o(self.blocks(self.i(x)).mean(1))


@pytest.mark.long
@EXAMPLES
@given(sizes=st.sampled_from(((4, 1), (4, 2), (6, 3), (8, 2))), how=st.sampled_from(("repeated", "expanded")))
def test_heads_that_share_keys_are_cut_in_whole_groups(sizes: tuple[int, int], how: str) -> None:
    heads, keys = sizes
    net = check_forms(Steps(Heads(heads, keys, how), Heads(heads, keys, how)), torch.randn(1, 5, 8))
    assert net is not None
    found = [variable for variable in net.space.variables if variable.kind == "heads"]
    assert len(found) == 2
    assert {variable.choices[-1] for variable in found} == {keys if keys > 1 else heads}


def test_heads_of_blocks_with_one_weight_are_one_variable() -> None:
    block = Heads(4, 4, "repeated")
    net = check_forms(Steps(block, block, block), torch.randn(1, 5, 8))
    assert net is not None
    assert "stage.1.heads" in [variable.name for variable in net.space.variables]
