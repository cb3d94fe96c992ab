"""First weights of alternatives from data: nearer in the results than weights alone are, exact where the kind can be exact."""

import pytest
import torch
from torch.nn import functional

from tailor_ir.alternatives.convolutions import diagonal, ghosts, paired, separated
from tailor_ir.alternatives.least_squares import ReplacedLayer
from tailor_ir.graph import Node
from tailor_ir.subnets.elastic import Branches

CONV = Node(name="conv", op="Conv", inputs=("x", "w"), outputs=("y",))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def layer(weight: torch.Tensor, metric: torch.Tensor | None = None) -> ReplacedLayer:
    return ReplacedLayer(node=CONV, weight=weight, metric=metric)


def separable(weight: torch.Tensor, metric: torch.Tensor | None) -> torch.Tensor:
    depthwise, pointwise = separated(layer(weight, metric))
    return pointwise * depthwise.transpose(0, 1)


def grouped(weight: torch.Tensor, metric: torch.Tensor | None) -> torch.Tensor:
    found = torch.zeros_like(weight)
    parts = diagonal(layer(weight, metric), 2)
    out, into = weight.shape[0] // 2, weight.shape[1] // 2
    found[:out, :into], found[out:, into:] = parts[:out], parts[out:]
    return found


def ghost(weight: torch.Tensor, metric: torch.Tensor | None) -> torch.Tensor:
    order = torch.from_numpy(paired(layer(weight, metric)))
    primary, cheap = ghosts(layer(weight[order], metric))
    found = torch.empty_like(weight)
    found[order] = torch.cat([primary, cheap[:, 0, 1, 1].reshape(-1, 1, 1, 1) * primary])
    return found


# -- whole networks ----------------------------------------------------------------------------------------------------


def images(size: int, count: int, seed: int) -> list[torch.Tensor]:
    """Smooth random images, in batches: neighbours are alike, as in photos."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, 3, size // 4, size // 4, generator=generator)
    fine = torch.randn(count, 3, size, size, generator=generator)
    smooth = functional.interpolate(coarse, size=(size, size), mode="bilinear")
    return list((smooth + 0.2 * fine).split(16))


@torch.no_grad()
def errors_of(branches: Branches, batches: list[torch.Tensor]) -> dict[str, float]:
    """By the definition: mean square of the difference over the variance of the blocks' result by channel."""
    found = {}
    features = [branches.features(x) for x in batches]
    for branch in branches.branches:
        over = (0, 2, 3) if features[0][branch.exit].ndim == 4 else (0, 1)
        wanted = torch.cat([each[branch.exit] for each in features])
        given = torch.cat([branches.run(branch, each) for each in features])
        spread = (wanted - wanted.mean(over, keepdim=True)).square().sum()
        found[f"{branch.variable}={branch.choice}"] = float((given - wanted).square().sum() / spread)
    return found
