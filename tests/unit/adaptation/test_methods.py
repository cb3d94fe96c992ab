"""Steps of the methods that adapt, against formulas written out for a network of one BatchNorm and one linear layer."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from tasks.adaptation import AdaptiveSubnet, MethodName, MethodSettings, make_method
from tasks.adaptation.methods import METHODS, BatchStatistics, Cotta, Eata, Roid, Sar, Tent
from tasks.adaptation.methods.record import (
    entropies,
    prior_corrected,
    reliable_weights,
    roid_weights,
    soft_likelihood_ratios,
)

RATE = 0.5
X = torch.randn(6, 4, generator=torch.Generator().manual_seed(1)) * 2 + 1


MEAN, VARIANCE = torch.tensor([0.5, -0.5, 0.0, 1.0]), torch.tensor([1.0, 2.0, 0.5, 1.5])
"""The source's statistics."""


class Tiny(nn.Module):
    """One BatchNorm and one linear layer, for vectors (B, 4) and 3 classes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.norm = nn.BatchNorm1d(4)
        self.norm.running_mean, self.norm.running_var = MEAN.clone(), VARIANCE.clone()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.norm(x))


def tiny() -> Tiny:
    return Tiny().eval()


def settings(**options: object) -> MethodSettings:
    return MethodSettings.model_validate({"optimiser": "sgd", "learning_rate": RATE, **options})


class Formula:
    """The same network by hand: scale and bias with gradients, normalised by the batch."""

    def __init__(self) -> None:
        self.linear = tiny().linear
        self.scale = torch.ones(4, requires_grad=True)
        self.bias = torch.zeros(4, requires_grad=True)

    def answers(self, scale: torch.Tensor | None = None, bias: torch.Tensor | None = None) -> torch.Tensor:
        mean, variance = X.mean(0), ((X - X.mean(0)) ** 2).mean(0)
        scale, bias = self.scale if scale is None else scale, self.bias if bias is None else bias
        return self.linear((X - mean) / torch.sqrt(variance + 1e-5) * scale + bias)


def entropy_of(logits: torch.Tensor) -> torch.Tensor:
    p = torch.exp(logits) / torch.exp(logits).sum(1, keepdim=True)
    return -(p * torch.log(p)).sum(1)


def norm_of(subnet: AdaptiveSubnet) -> tuple[torch.Tensor, torch.Tensor]:
    state = subnet.network.state_dict()
    return state["norm.weight"], state["norm.bias"]


def test_statistics_of_batch_and_source_are_mixed_by_their_numbers_of_images() -> None:
    network = tiny()
    method = BatchStatistics(AdaptiveSubnet(network), settings(prior_images=18))
    found = method.adapt(X)
    mixed_mean = 18 / 24 * MEAN + 6 / 24 * X.mean(0)
    mixed_variance = 18 / 24 * VARIANCE + 6 / 24 * X.var(0, unbiased=False)
    expected = network.linear((X - mixed_mean) / (mixed_variance + 1e-5).sqrt())
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_statistics_kept_from_single_images_have_the_variance_between_them() -> None:
    subnet = AdaptiveSubnet(tiny())
    method = BatchStatistics(subnet, settings(newest_share=0.01))
    for row in X:
        method.adapt(row[None])
    state = subnet.network.state_dict()
    torch.testing.assert_close(state["norm.running_mean"], X.mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(state["norm.running_var"], X.var(0, unbiased=False), rtol=1e-4, atol=1e-5)


def test_tent_steps_down_the_gradient_of_the_mean_entropy() -> None:
    subnet, formula = AdaptiveSubnet(tiny()), Formula()
    logits = formula.answers()
    gradients = torch.autograd.grad(entropy_of(logits).mean(), [formula.scale, formula.bias])
    torch.testing.assert_close(Tent(subnet, settings()).adapt(X), logits.detach(), rtol=1e-5, atol=1e-5)
    scale, bias = norm_of(subnet)
    torch.testing.assert_close(scale, 1 - RATE * gradients[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(bias, -RATE * gradients[1], rtol=1e-5, atol=1e-6)
    assert not torch.equal(scale, torch.ones(4))


def test_weights_of_reliable_samples_are_those_of_eata() -> None:
    entropy = torch.tensor([0.1, 0.3, 0.5, 1.0])
    limit = 0.4 * math.log(3)
    expected = [math.exp(limit - e) if e < limit else 0.0 for e in entropy.tolist()]
    assert reliable_weights(entropy, 3, 0.4).tolist() == pytest.approx(expected, rel=1e-6)
    assert expected[2] == 0


def test_eata_counts_reliable_and_different_samples_and_holds_what_is_important() -> None:
    subnet, formula = AdaptiveSubnet(tiny()), Formula()
    method = Eata(subnet, settings(entropy_share=0.8, redundancy=0.95, fisher=2.0), [X[:3]])
    first = formula.answers()
    limit = 0.8 * math.log(3)
    entropy = entropy_of(first)
    chosen = entropy < limit
    assert 0 < chosen.sum() < len(X)
    loss = (torch.exp(limit - entropy.detach()) * entropy)[chosen].mean()  # at the source the term of the Fisher is 0
    gradients = torch.autograd.grad(loss, [formula.scale, formula.bias])
    scale, bias = formula.scale - RATE * gradients[0], formula.bias - RATE * gradients[1]
    method.adapt(X)
    torch.testing.assert_close(norm_of(subnet), (scale, bias), rtol=1e-4, atol=1e-5)

    mean = first.softmax(1)[chosen].mean(0).detach()
    scale, bias = scale.detach().requires_grad_(), bias.detach().requires_grad_()
    second = formula.answers(scale, bias)
    p, entropy = second.softmax(1), entropy_of(second)
    cosine = (p * mean).sum(1) / (p.norm(dim=1) * mean.norm())
    chosen = (entropy < limit) & (cosine.abs() < 0.95)
    assert 0 < chosen.sum() < len(X)
    held = (method.importance[0] * (scale - 1) ** 2).sum() + (method.importance[1] * bias**2).sum()
    loss = (torch.exp(limit - entropy.detach()) * entropy)[chosen].mean() + 2.0 * held
    found = torch.autograd.grad(loss, [scale, bias])
    moved = [
        before - RATE * (0.9 * old + new) for before, old, new in zip((scale, bias), gradients, found, strict=True)
    ]
    method.adapt(X)
    torch.testing.assert_close(norm_of(subnet), tuple(moved), rtol=1e-3, atol=1e-4)


def test_importance_is_the_mean_square_of_gradients_to_own_answers() -> None:
    network = tiny()
    method = Eata(AdaptiveSubnet(copy.deepcopy(network)), settings(), [X[:2], X[2:3]])
    squares = torch.zeros(4)
    for row in X[:3]:
        bias = torch.zeros(4, requires_grad=True)
        logits = network.linear((row - MEAN) / (VARIANCE + 1e-5).sqrt() + bias)
        loss = torch.logsumexp(logits, 0) - logits.max()
        squares += torch.autograd.grad(loss, bias)[0] ** 2
    torch.testing.assert_close(method.importance[1], squares / 3, rtol=1e-4, atol=1e-6)


def test_sar_takes_the_gradient_from_the_edge_of_the_neighbourhood() -> None:
    subnet, formula = AdaptiveSubnet(tiny()), Formula()
    limit = 0.8 * math.log(3)
    entropy = entropy_of(formula.answers())
    chosen = entropy < limit
    g = torch.autograd.grad(entropy[chosen].mean(), [formula.scale, formula.bias])
    norm = torch.sqrt(g[0].square().sum() + g[1].square().sum())
    scale = (formula.scale + 0.3 * g[0] / norm).detach().requires_grad_()
    bias = (formula.bias + 0.3 * g[1] / norm).detach().requires_grad_()
    there = entropy_of(formula.answers(scale, bias))
    both = chosen & (there < limit)
    step = torch.autograd.grad(there[both].mean(), [scale, bias])
    Sar(subnet, settings(entropy_share=0.8, radius=0.3, recover_below=0.0)).adapt(X)
    expected = (1 - RATE * step[0], -RATE * step[1])
    torch.testing.assert_close(norm_of(subnet), expected, rtol=1e-4, atol=1e-5)


def test_sar_goes_back_where_entropy_collapses() -> None:
    subnet = AdaptiveSubnet(tiny())
    Sar(subnet, settings(entropy_share=0.9, recover_below=2.0)).adapt(X)
    assert subnet.state() == {}


def unlike_student(method: Cotta) -> None:
    """Give the student another scale than the teacher's: while they are equal, there is nothing to learn."""
    with torch.no_grad():
        method.student.network.get_parameter("norm.weight").fill_(1.5)


def test_cotta_teaches_the_student_and_follows_it() -> None:
    network, formula = tiny(), Formula()
    source = [parameter.detach().clone() for parameter in network.parameters()]
    q = formula.answers().softmax(1).detach()
    learned = [torch.full((4,), 1.5).requires_grad_(), formula.bias, formula.linear.weight, formula.linear.bias]
    loss = -(q * torch.log_softmax(formula.answers(learned[0]), 1)).sum(1).mean()
    gradients = torch.autograd.grad(loss, learned)
    method = Cotta(AdaptiveSubnet(network), settings(sure=0.0, teacher_share=0.9, restored_share=0.0))
    unlike_student(method)
    torch.testing.assert_close(method.adapt(X).exp(), q, rtol=1e-5, atol=1e-6)
    for now, origin, old, gradient in zip(network.parameters(), source, learned, gradients, strict=True):
        assert gradient.abs().max() > 1e-3
        expected = 0.9 * origin + 0.1 * (old - RATE * gradient)
        torch.testing.assert_close(now.detach(), expected.detach(), rtol=1e-5, atol=1e-6)


def test_all_weights_of_the_student_return_where_the_share_is_one() -> None:
    statistics = {"norm.running_mean", "norm.running_var"}
    for share, found in (
        (0.0, statistics | {"norm.weight", "norm.bias", "linear.weight", "linear.bias"}),
        (1.0, statistics),
    ):
        method = Cotta(AdaptiveSubnet(tiny()), settings(sure=0.0, restored_share=share))
        unlike_student(method)
        method.adapt(X)
        assert set(method.student.state()) == found


def test_soft_likelihood_ratios_are_those_of_the_paper() -> None:
    logits = torch.tensor([[2.0, -1.0, 0.5], [0.0, 0.0, 0.0]])
    expected = []
    for row in logits.double().numpy():
        p = np.exp(row) / np.exp(row).sum()
        expected.append(-sum(p[c] * math.log(p[c] / (p.sum() - p[c])) for c in range(3)))
    assert soft_likelihood_ratios(logits).tolist() == pytest.approx(expected, rel=1e-5)
    sure = torch.tensor([[60.0, 0.0, 0.0]], requires_grad=True)
    value = soft_likelihood_ratios(sure)
    value.sum().backward()
    assert sure.grad is not None
    assert sure.grad.abs().max() > 0.5  # entropy has none here
    plain = sure.detach().requires_grad_()
    entropies(plain).sum().backward()
    assert plain.grad is not None
    assert plain.grad.abs().max() < 1e-10


def test_weights_of_roid_are_those_of_the_paper() -> None:
    logits = torch.tensor([[2.0, -1.0, 0.5], [0.1, 0.2, 0.0], [-1.0, 3.0, 0.0], [0.0, 0.5, 4.0]])
    mean = np.array([0.5, 0.3, 0.2])
    p = np.exp(logits.double().numpy())
    p /= p.sum(1, keepdims=True)
    diversity = 1 - (p @ mean) / (np.linalg.norm(p, axis=1) * np.linalg.norm(mean))
    certainty = (p * np.log(p)).sum(1)
    diversity, certainty = ((v - v.min()) / (v.max() - v.min()) for v in (diversity, certainty))
    expected = np.where(diversity >= diversity.mean(), np.exp(diversity * certainty * 3), 0)
    found = roid_weights(logits, torch.tensor(mean, dtype=torch.float32), 1 / 3)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4)
    assert 0 in expected


def test_class_shares_correct_answers() -> None:
    logits = torch.tensor([[2.0, -1.0, 0.5], [0.1, 0.2, 0.0]])
    p = logits.softmax(1)
    mean = p.mean(0)
    smoothing = 0.5 / mean.max()  # two images, three classes
    wanted = p * (mean + smoothing) / (1 + 3 * smoothing)
    found = prior_corrected(logits).softmax(1)
    torch.testing.assert_close(found, wanted / wanted.sum(1, keepdim=True), rtol=1e-5, atol=1e-6)


def test_roid_pulls_weights_to_the_source() -> None:
    free, held = (AdaptiveSubnet(tiny()) for _ in range(2))
    for subnet, kept in ((free, 1.0), (held, 0.6)):
        Roid(subnet, settings(kept_share=kept)).adapt(X)
    (scale, bias), (held_scale, held_bias) = norm_of(free), norm_of(held)
    assert not torch.equal(scale, torch.ones(4))
    torch.testing.assert_close(held_scale, 0.6 * scale + 0.4, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(held_bias, 0.6 * bias, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_a_single_image_is_a_batch_and_a_method_that_is_reset_forgets(name: MethodName) -> None:
    subnet = AdaptiveSubnet(tiny())
    images = subnet.network(torch.zeros(1, 4)).shape  # a network of vectors has no views: CoTTA is sure
    assert images == (1, 3)
    method = make_method(subnet, settings(method=name, learning_rate=0.01, sure=0.0), [X])
    first = [method.adapt(X[:1]), method.adapt(X)]
    assert all(answer.isfinite().all() for answer in first)
    method.reset()
    assert subnet.state() == {}
    again = [method.adapt(X[:1]), method.adapt(X)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
