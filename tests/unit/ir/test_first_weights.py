"""First weights of alternatives from data: nearer in the results than weights alone are, exact where the kind can be exact."""

from collections.abc import Callable

import numpy as np
import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

import tailor_ir
from tailor_ir.alternatives.convolutions import at_centre, fired
from tailor_ir.alternatives.least_squares import (
    LeftVectors,
    PatchMoments,
    PatchSums,
    ReplacedLayer,
    basis,
    chosen,
    of_rank,
    pivots,
    results,
    shrunk,
    windows,
)
from tailor_ir.alternatives.low_rank import svd, tucker
from tailor_ir.graph import Node
from tailor_ir.subnets.elastic import Branches
from tests.support import examples
from tests.support.ir import first_weights
from tests.support.ir.first_weights import CONV, errors_of, ghost, grouped, images, layer, separable
from tests.support.ir.networks import perturb

_seeded = first_weights._seeded

Kind = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]
"""A weight (O, I, 3, 3) and a metric -> the kernel that the kind's layers together compute."""


def correlated(numbers: int, seed: int) -> torch.Tensor:
    """A metric of data whose directions differ much in variance."""
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randn(numbers, numbers, generator=generator, dtype=torch.float64)
    return mixed @ torch.diag(torch.logspace(0, -3, numbers, dtype=torch.float64)) @ mixed.T


def low_rank_1x1(weight: torch.Tensor, metric: torch.Tensor | None) -> torch.Tensor:
    down, up = svd(layer(weight.flatten(1), metric), 6)
    return (up @ down).reshape(weight.shape)


def low_rank_kxk(weight: torch.Tensor, metric: torch.Tensor | None) -> torch.Tensor:
    down, core, up = tucker(layer(weight, metric), 5, 6)
    return torch.einsum("pi,qpkl,oq->oikl", down, core, up)


KINDS: dict[str, Kind] = {
    "low_rank_1x1": low_rank_1x1,
    "low_rank_kxk": low_rank_kxk,
    "separable": separable,
    "grouped": grouped,
    "ghost": ghost,
}


def lost(found: torch.Tensor, weight: torch.Tensor, metric: torch.Tensor) -> float:
    """‖(W̃ − W) Σ^½‖² over ‖W Σ^½‖²."""
    differ, w = (found - weight).flatten(1), weight.flatten(1)
    return float((differ @ metric * differ).sum() / (w @ metric * w).sum())


@pytest.mark.parametrize("kind", list(KINDS))
@settings(max_examples=examples(15), deadline=None)
@given(seed=st.integers(0, 10_000))
def test_weights_from_data_lose_less_of_the_results_than_weights_alone(kind: str, seed: int) -> None:
    weight = torch.randn(12, 8, 3, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    metric = correlated(72, seed)
    of_data, of_weights = (lost(KINDS[kind](weight, given), weight, metric) for given in (metric, None))
    assert of_data <= of_weights * (1 + 1e-6)


def test_low_rank_from_data_is_the_best_of_its_rank() -> None:
    """No other map of the rank loses less: the error is that of the singular values of W Σ^½."""
    weight, metric = torch.randn(10, 14, dtype=torch.float64), correlated(14, 3)
    root = torch.linalg.cholesky(metric)
    singular = torch.linalg.svdvals(weight @ root)
    down, up = svd(layer(weight, metric), 4)
    best = float(singular[4:].square().sum() / singular.square().sum())
    assert lost(up @ down, weight, metric) == pytest.approx(best, rel=2e-2)
    assert lost(up @ down, weight, metric) >= best * (1 - 1e-9)


@settings(max_examples=examples(15), deadline=None)
@given(seed=st.integers(0, 10_000))
def test_low_rank_counts_results_by_their_gains(seed: int) -> None:
    """What a BatchNorm makes of the results differs less than without gains, however the gains are spread."""
    generator = torch.Generator().manual_seed(seed)
    weight, metric = torch.randn(10, 14, generator=generator, dtype=torch.float64), correlated(14, seed)
    gain = torch.logspace(0, -1.5, 10, dtype=torch.float64)[torch.randperm(10, generator=generator)]
    plain = layer(weight, metric)
    weighted = ReplacedLayer(node=plain.node, weight=weight, metric=metric, gain=gain)
    with_gain, without = (
        lost(gain[:, None] * (up @ down), gain[:, None] * weight, metric)
        for down, up in (svd(weighted, 4), svd(plain, 4))
    )
    assert with_gain <= without * (1 + 1e-3)
    order = np.array([3, 1, 7])
    assert torch.equal(weighted.reordered(order, None).gains, weighted.gains[torch.from_numpy(order)])


def test_two_maps_in_a_row_are_fitted_as_one_of_their_rank() -> None:
    weight, metric = torch.randn(9, 12, dtype=torch.float64), correlated(12, 1)
    down, up = of_rank(weight, 3, metric)
    assert (down.shape, up.shape) == ((3, 12), (9, 3))
    assert lost(up @ down, weight, metric) == pytest.approx(
        lost(torch.mm(*svd(layer(weight, metric), 3)[::-1]), weight, metric)
    )
    assert lost(up @ down, weight, metric) < lost(torch.mm(*svd(layer(weight), 3)[::-1]), weight, metric)


def test_maps_of_full_rank_lose_nothing_on_data_of_low_rank() -> None:
    seen = torch.randn(4, 14, dtype=torch.float64)
    weight, metric = torch.randn(10, 14, dtype=torch.float64), seen.T @ seen
    down, up = svd(layer(weight, metric), 4)
    assert lost(up @ down, weight, metric) < 1e-3 < lost(torch.mm(*svd(layer(weight), 4)[::-1]), weight, metric)


@pytest.mark.parametrize("nonnegative", [True, False])
def test_squeezed_channels_pass_the_relu_as_they_are(nonnegative: bool) -> None:
    """With as many squeezed channels as it takes, fire computes on its data what the layer computes."""
    x = torch.randn(4000, 6, dtype=torch.float64)
    x = x.abs() if nonnegative else x
    weight = torch.randn(8, 6, 1, 1, dtype=torch.float64)
    replaced = ReplacedLayer(node=CONV, weight=weight, metric=x.T @ x / len(x), nonnegative=nonnegative)
    squeeze, point, kernel = fired(replaced, 6 if nonnegative else 12)
    small = functional.relu(x @ squeeze.flatten(1).T)
    found = torch.cat([small @ point.flatten(1).T, small @ kernel.flatten(1).T], 1)
    wanted = x @ weight.flatten(1).T
    assert (found - wanted).norm() <= 2e-3 * wanted.norm()


def test_the_middle_of_a_kernel_explains_what_data_repeat() -> None:
    """Where all positions of a patch are equal, a 1×1 convolution gives everything, whatever the kernel."""
    channel = correlated(4, 0)
    metric = torch.kron(channel, torch.ones(9, 9, dtype=torch.float64))
    weight = torch.randn(5, 4, 3, 3, dtype=torch.float64)
    assert torch.allclose(at_centre(layer(weight, metric)), torch.ones(5, dtype=torch.float64), atol=1e-2)
    assert (at_centre(layer(weight)) < 0.5).any()


def test_pivots_leave_out_rows_that_others_explain() -> None:
    rows = torch.randn(3, 20, dtype=torch.float64)
    gram = torch.cat([rows, 0.5 * rows]) @ torch.cat([rows, 0.5 * rows]).T
    assert sorted(pivots(gram, 3).tolist()) == [0, 1, 2]


# -- moments -----------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(25), deadline=None)
@given(
    kernel=st.sampled_from([1, 2, 3, 5]),
    stride=st.integers(1, 2),
    dilation=st.integers(1, 2),
    pads=st.tuples(*[st.integers(0, 2)] * 4),
    seed=st.integers(0, 1000),
)
def test_windows_are_what_a_convolution_reads(
    kernel: int, stride: int, dilation: int, pads: tuple[int, int, int, int], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 3, 12, 11, generator=generator)
    weight = torch.randn(4, 3, kernel, kernel, generator=generator)
    attributes = (("pads", pads), ("strides", (stride,) * 2), ("dilations", (dilation,) * 2))
    node = Node(name="conv", op="Conv", inputs=("x", "w"), outputs=("y",), attributes=attributes)
    top, left, bottom, right = pads
    y = functional.conv2d(functional.pad(x, (left, right, top, bottom)), weight, stride=stride, dilation=dilation)
    read = windows(x, node, (kernel, kernel))
    places = chosen(read.places, 10, np.random.default_rng(seed))
    assert read.places == (2, *y.shape[2:])
    assert torch.allclose(read.at(places) @ weight.flatten(1).T, results(y, node, places), atol=1e-4)


def test_moments_are_means_over_patches() -> None:
    x = torch.rand(4, 3, 6, 6)
    node = Node(name="conv", op="Conv", inputs=("x", "w"), outputs=("y",))
    sums = PatchSums(node, (5, 3, 3, 3), len(x), np.random.default_rng(0))
    sums.add(x)
    found = sums.moments()
    rows = functional.unfold(x, 3).movedim(1, 2).reshape(-1, 27)
    assert sums.count == len(rows)  # fewer than are wanted: all of them
    assert torch.allclose(found.second, rows.T @ rows / len(rows), atol=1e-5)
    assert torch.allclose(found.mean, rows.mean(0), atol=1e-6)
    assert found.nonnegative
    centred = torch.cov(rows.T, correction=0).double()
    assert torch.allclose(found.metric(centred=True), shrunk(centred, len(rows)), atol=1e-5)


def test_a_layer_in_another_order_reads_its_patches_in_that_order() -> None:
    weight, x = torch.randn(5, 3, 3, 3, dtype=torch.float64), torch.randn(100, 3, 3, 3, dtype=torch.float64)
    given, turned = (each.flatten(1).T @ each.flatten(1) for each in (x, x[:, [2, 0]]))
    found = layer(weight, given).reordered(np.array([4, 1]), np.array([2, 0]))
    assert torch.equal(found.weight, weight[[4, 1]][:, [2, 0]])
    assert found.metric is not None
    assert torch.allclose(found.metric, turned)
    assert torch.allclose(found.cross, found.matrix @ turned)
    assert layer(weight, given).reordered(np.array([4, 1]), None).metric is not None


def test_bases_of_several_ranks_are_parts_of_one() -> None:
    for shape in ((20, 30), (30, 20)):
        matrix = torch.randn(shape, dtype=torch.float64)
        vectors = LeftVectors(matrix)
        for rank in (3, 11):
            assert torch.equal(vectors(rank), basis(matrix, rank))
            expected = torch.linalg.svd(matrix)[0][:, :rank]
            assert torch.allclose((vectors(rank).T @ expected).abs(), torch.eye(rank, dtype=torch.float64), atol=1e-9)


def test_few_samples_are_believed_less() -> None:
    """The more samples, the nearer to the metric of the data; what is shrunk is nearer to the truth than what is not."""
    truth = correlated(40, 0)
    root = torch.linalg.cholesky(truth + 1e-9 * torch.eye(40, dtype=torch.float64))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(10_000, 40, generator=generator, dtype=torch.float64) @ root.T
    few, many = (x[:count].T @ x[:count] / count for count in (20, 10_000))
    assert (shrunk(few, 20) - truth).norm() < (few - truth).norm()
    assert (shrunk(many, 10_000) - many).norm() < 0.01 * many.norm()
    assert torch.linalg.eigvalsh(few)[0] < 1e-9 < torch.linalg.eigvalsh(shrunk(few, 20))[0]


def test_a_negative_number_is_noticed() -> None:
    moments = [
        PatchSums(Node(name="l", op="Linear", inputs=("x", "w"), outputs=("y",)), (2, 3), 2, np.random.default_rng(0))
    ]
    moments[0].add(torch.tensor([[0.0, 1, 2], [0, -1, 2]]))
    found: PatchMoments = moments[0].moments()
    assert not found.nonnegative
    assert found.mean.tolist() == [0, 0, 2]


@pytest.mark.few("False")
@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_the_network_stays(training: bool) -> None:
    """And with it what alternatives lose: they are judged in eval mode."""
    torch.manual_seed(0)
    model = perturb(timm.create_model("test_resnet", num_classes=10))
    net = tailor_ir.compile(model, torch.randn(1, 3, 64, 64), {"alternatives": ["pruned_0.5"]})
    net.elastic.train(training)
    told = net.fit_alternatives(images(64, 32, 0), images(64, 16, 1), np.random.default_rng(0))
    assert net.elastic.training is training
    assert all(part.training is training for part in net.elastic.modules())
    net.elastic.eval()
    found = errors_of(Branches(net.elastic), images(64, 16, 1))
    assert {f"{each.variable}={each.choice}": each.error for each in told} == pytest.approx(found, rel=1e-3)
