"""Each kind of alternatives, at blocks of any make: it works, or is refused in one line."""

from collections.abc import Callable

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from tailor_ir.alternatives.adding import ALTERNATIVES
from tests.unit.ir.forms import check_forms

Layer = Callable[[int, int], nn.Module]


class Both(nn.Module):
    """One path, plus or times another."""

    def __init__(self, first: nn.Module, second: nn.Module, gated: bool) -> None:
        super().__init__()
        self.a, self.b, self.gated = first, second, gated

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x) * self.b(x).sigmoid() if self.gated else self.a(F.silu(x)) + self.b(x)


class Twice(nn.Module):
    """x and a layer that is applied twice."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layer(torch.relu(self.layer(x)))


class Pooled(nn.Module):
    """The mean over positions, wherever they are."""

    def __init__(self, axes: tuple[int, ...]) -> None:
        super().__init__()
        self.axes = axes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(self.axes) if self.axes else x


FORMS: dict[str, tuple[Layer, tuple[int, ...], tuple[int, ...]]] = {
    "rows": (nn.Linear, (12,), ()),
    "steps": (nn.Linear, (5, 12), (1,)),
    "signals": (lambda i, o: nn.Conv1d(i, o, 3, padding=1), (12, 9), (2,)),
    "images": (lambda i, o: nn.Conv2d(i, o, 3, padding=1), (12, 8, 8), (2, 3)),
    "clips": (lambda i, o: nn.Conv3d(i, o, 3, padding=1), (12, 4, 4, 4), (2, 3, 4)),
}


@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    form=st.sampled_from(sorted(FORMS)),
    kind=st.sampled_from((*ALTERNATIVES, "merged")),
    widths=st.lists(st.sampled_from((16, 24, 32)), min_size=2, max_size=3),
    gated=st.booleans(),
)
def test_an_alternative_of_blocks_of_several_paths_works_or_is_refused(
    form: str, kind: str, widths: list[int], gated: bool
) -> None:
    layer, shape, positions = FORMS[form]
    pairs = list(zip((12, *widths), widths, strict=False))
    blocks: list[nn.Module] = [Both(layer(i, o), layer(i, o), gated) for i, o in pairs]
    model = nn.Sequential(*blocks, Twice(layer(widths[-1], widths[-1])), Pooled(positions), nn.Linear(widths[-1], 5))
    check_forms(model, torch.randn(1, *shape), {"*": "auto", "alternatives": [kind]}, subnets=1)


def test_merged_blocks_of_linear_maps_read_the_entry_of_the_first() -> None:
    blocks = (Both(nn.Linear(i, o), nn.Linear(i, o), False) for i, o in ((64, 32), (32, 32), (32, 10)))
    net = check_forms(nn.Sequential(nn.Flatten(), *blocks), torch.rand(1, 1, 8, 8), {"alternatives": ["merged"]})
    assert net is not None
    assert net.space.distinct > 1
