"""Scales and biases that adapt on the device are those of torch's Tent, and so are the answers of onnxruntime with them."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch.nn import functional

import tailor_ir
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.bundles import AdaptableNet
from adaptive_runtime.weights import (
    LearnedScales,
    NormScales,
    NormStatistics,
    ObservedNetwork,
    StatisticsWeights,
    WeightOptions,
)
from adaptive_runtime.weights.gradients import OPERATORS, DifferentiableNetwork
from adaptive_runtime.weights.statistics import MOST_TIMES, EntropyGradients
from adaptive_runtime.weights.weights import LabelledSource
from tailor_ir import Config, Statistics, SuperNet
from tasks.adaptation import AdaptiveSubnet, MethodSettings, make_method
from tasks.evaluation.adapted import AdaptiveBatchNorm
from tasks.export.bundles.extras import adaptable_net, observed
from tests.support.ir.networks import from_timm, perturb, small_net
from tests.support.runtime.bundled import OBSERVED_IMAGES, SETTINGS

TOLERANCE = 1e-4
PRIOR_IMAGES, NEWEST_SHARE, LEARNING_RATE = 4.0, 0.3, 0.5
LABELS = np.zeros(32, np.int64)


def images(count: int, seed: int, shift: float = 0.0, size: int = 16) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((count, 3, size, size)) + shift).astype(np.float32)


class Exported(NamedTuple):
    """A SubNet with statistics of its own, and what a device has of it."""

    net: SuperNet
    config: Config
    statistics: Statistics
    facts: AdaptableNet
    folder: Path

    @property
    def observed(self) -> ObservedNetwork:
        return observed(self.facts, self.folder, SETTINGS)

    @property
    def differentiable(self) -> DifferentiableNetwork:
        return DifferentiableNetwork(self.folder / self.facts.file, self.facts, 1)

    @property
    def layers(self) -> tuple[AdaptiveSubnet, list[AdaptiveBatchNorm]]:
        """The SubNet in torch, and its BatchNorms."""
        subnet = AdaptiveSubnet.of(self.net, self.config, self.statistics)
        return subnet, [layer for layer in subnet.norms.values() if isinstance(layer, AdaptiveBatchNorm)]


def exported(net: SuperNet, which: str, folder: Path, size: int = 16) -> Exported:
    config = net.max_config if which == "largest" else net.min_config
    statistics = net.recalibrate(config, [torch.from_numpy(images(64, 1, size=size))])
    net.export_together({which: (config, statistics)}, folder, observed_images=OBSERVED_IMAGES)
    facts = adaptable_net(which, OBSERVED_IMAGES, folder, images(96, 2, size=size), SETTINGS)
    assert facts is not None
    return Exported(net, config, statistics, facts, folder)


@pytest.fixture(scope="module")
def net() -> SuperNet:
    torch.manual_seed(0)
    return tailor_ir.compile(perturb(small_net(blocks=2)), torch.randn(1, 3, 16, 16), {"*.width_mult": [0.5, 1]})


def joined(layers: list[AdaptiveBatchNorm], *names: str) -> list[np.ndarray]:
    """Tensors of all layers by name, one after another."""
    return [np.concatenate([getattr(layer, name).detach().numpy().copy() for layer in layers]) for name in names]


@pytest.mark.parametrize("which", ["largest", "smallest"])
@pytest.mark.parametrize("sure_share", [None, 0.99], ids=["tent", "sure images"])
def test_steps_on_the_device_are_those_of_torch(
    net: SuperNet, which: str, sure_share: float | None, tmp_path: Path
) -> None:
    there = exported(net, which, tmp_path)
    source, layers = there.layers
    own = NormStatistics(*joined(layers, "running_mean", "running_var"))
    options = WeightOptions(
        method="tent",
        prior_images=PRIOR_IMAGES,
        newest_share=NEWEST_SHARE,
        learning_rate=LEARNING_RATE,
        sure_share=sure_share,
    )
    learned = LearnedScales(lambda: there.differentiable, options)
    anchor = LabelledSource(images(32, 3), LABELS)
    weights = StatisticsWeights(there.observed, own, lambda: anchor, options, learned)
    before = joined(layers, "weight", "bias")
    assert all(np.array_equal(*pair) for pair in zip(learned.now, before, strict=True))
    assert all(np.array_equal(*pair) for pair in zip(weights.folded, own, strict=True))
    steps = MethodSettings(
        method="tent" if sure_share is None else "eata",
        optimiser="sgd",
        learning_rate=LEARNING_RATE,
        prior_images=PRIOR_IMAGES,
        newest_share=NEWEST_SHARE,
        entropy_share=sure_share or 0.4,
        fisher=0.0,
        redundancy=1.0,
    )
    method = make_method(source, steps, [])
    for step in range(4):
        batch = images(OBSERVED_IMAGES, 10 + step, 0.7)
        method.adapt(torch.from_numpy(batch))
        weights.adapt(batch)
    after = joined(layers, "weight", "bias")
    for found, expected, start in zip(learned.now, after, before, strict=True):
        assert np.abs(found - expected).max() <= TOLERANCE
        assert np.abs(expected - start).max() > 100 * TOLERANCE
    for found, expected in zip(weights.statistics, joined(layers, "running_mean", "running_var"), strict=True):
        assert np.abs(found - expected).max() <= TOLERANCE
    x = images(8, 9, 0.7)
    with torch.no_grad():
        logits = source(torch.from_numpy(x)).numpy()
    assert np.abs(weights.look(x).logits_BK - logits).max() <= TOLERANCE * np.abs(logits).max()
    by_statistics = there.observed.look(x, weights.statistics).logits_BK
    assert np.abs(by_statistics - logits).max() > 100 * TOLERANCE
    weights.release()
    weights.adapt(images(OBSERVED_IMAGES, 20, 0.7))
    weights.reset()
    assert all(np.array_equal(*pair) for pair in zip(learned.now, before, strict=True))


def test_a_step_to_several_batches_is_that_of_their_mean_entropy(net: SuperNet, tmp_path: Path) -> None:
    there = exported(net, "largest", tmp_path)
    network, (source, layers) = there.differentiable, there.layers
    own = NormStatistics(*joined(layers, "running_mean", "running_var"))
    options = WeightOptions(method="tent", learning_rate=1.0, momentum=0.0, sure_share=None)
    learned = LearnedScales(lambda: network, options)
    x = images(2 * OBSERVED_IMAGES, 30, 0.5)
    batches = there.observed.batches(x)
    share = OBSERVED_IMAGES / (OBSERVED_IMAGES + PRIOR_IMAGES)
    statistics = learned.step(batches, own, share)
    expected = there.observed.statistics(x, own, share)
    for one, other in zip(statistics, expected, strict=True):
        assert one == pytest.approx(other, abs=TOLERANCE)
    parameters = source.affine()
    with source.by_batch(PRIOR_IMAGES, 1.0, keeps=False):
        logits = torch.cat([source(torch.from_numpy(one)) for one in batches])
    loss = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()
    gradients = [one.numpy() for one in torch.autograd.grad(loss, parameters)]
    for found, start, by in zip(learned.now, learned.source, (gradients[::2], gradients[1::2]), strict=True):
        assert start - found == pytest.approx(np.concatenate(by), abs=TOLERANCE)


@pytest.mark.long
def test_a_network_of_other_operators_is_the_one_that_onnxruntime_runs(tmp_path: Path) -> None:
    network, _ = from_timm("mobilenetv3_small_050")
    there = exported(tailor_ir.compile(network, torch.zeros(1, 3, 32, 32), {}), "largest", tmp_path, size=32)
    own = NormStatistics(*joined(there.layers[1], "running_mean", "running_var"))
    differentiable, x = there.differentiable, images(OBSERVED_IMAGES, 4, 0.3, size=32)
    found = differentiable.entropy_gradients(x, differentiable.scales, own, 0.5, None)
    expected = there.observed.statistics(x, own, 0.5)
    assert found.counted == OBSERVED_IMAGES
    for one, other in zip(found.statistics, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-3)
    assert all(np.isfinite(one).all() and one.any() for one in (found.by_scale_F, found.by_bias_F))


def test_an_operator_without_gradients_is_one_line(net: SuperNet, tmp_path: Path) -> None:
    there = exported(net, "largest", tmp_path)
    model = onnx.load(tmp_path / there.facts.file, load_external_data=False)
    next(node for node in model.graph.node if node.op_type == "Relu").op_type = "Ceil"
    onnx.save(model, tmp_path / there.facts.file)
    with pytest.raises(AdaptiveError, match=r"operator 'Ceil' at '.*' has no gradients here; adapt by 'statistics'"):
        _ = there.differentiable


class _Still(NamedTuple):
    """A network whose gradients are given."""

    scales: NormScales
    epsilon_F: np.ndarray
    gradient: NormScales

    def entropy_gradients(
        self, x_BCHW: np.ndarray, scales: NormScales, source: NormStatistics, share: float, sure_share: float | None
    ) -> EntropyGradients:
        return EntropyGradients(source, *self.gradient, len(x_BCHW))


def test_statistics_stand_in_for_scales_and_biases() -> None:
    """Also where a scale would change its sign, and where it is 0: such channels stay as the bounds say."""
    rng = np.random.default_rng(0)
    scale = np.array([1.0, -0.5, 0.02, 0.0, 1.0, 1.0], np.float32)
    bias, epsilon = rng.standard_normal(6).astype(np.float32), np.full(6, 1e-5, np.float32)
    moved = NormScales(np.array([0.3, 0.2, 1.0, 1.0, 5.0, -9.0], np.float32), rng.standard_normal(6).astype(np.float32))
    still = _Still(NormScales(scale, bias), epsilon, moved)
    learned = LearnedScales(lambda: still, WeightOptions(method="tent", learning_rate=1.0))
    statistics = NormStatistics(rng.standard_normal(6).astype(np.float32), rng.uniform(0, 2, 6).astype(np.float32))
    statistics.variance_F[4] = 0.0  # of a channel that is the same for all images
    learned.step([np.zeros((1, 1, 1, 1), np.float32)], statistics, 0.5)
    expected = [0.7, -0.7, 0.02 / MOST_TIMES, 0.0, 1 / MOST_TIMES, MOST_TIMES]
    assert learned.now.scale_F == pytest.approx(np.array(expected))
    assert learned.now.bias_F[3] == bias[3]
    folded = learned.folded(statistics)
    x = torch.from_numpy(rng.standard_normal((5, 6)).astype(np.float32))
    mean, variance, before, own_bias = map(torch.from_numpy, (*folded, scale, bias))
    found = functional.batch_norm(x, mean, variance, before, own_bias)
    mean, variance, now, now_bias = map(torch.from_numpy, (*statistics, *learned.now))
    wanted = functional.batch_norm(x, mean, variance, now, now_bias)
    assert found.numpy() == pytest.approx(wanted.numpy(), rel=TOLERANCE, abs=TOLERANCE)


RNG = np.random.default_rng(5)
X = RNG.standard_normal((2, 4, 7, 7)).astype(np.float32)
CASES: dict[str, tuple[str, dict[str, np.ndarray], dict[str, Any]]] = {
    "uneven pads of Conv": ("Conv", {"w": X[:, :, :3, :3].copy()}, {"pads": [0, 1, 1, 0], "strides": [2, 2]}),
    "groups": ("Conv", {"w": np.ones((4, 1, 3, 3), np.float32)}, {"group": 4, "dilations": [2, 2]}),
    "MaxPool": ("MaxPool", {}, {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "uneven pads of MaxPool": ("MaxPool", {}, {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0, 0, 1, 1]}),
    "AveragePool": ("AveragePool", {}, {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "counted pads": ("AveragePool", {}, {"kernel_shape": [2, 2], "pads": [0, 0, 1, 1], "count_include_pad": 1}),
    "Clip": ("Clip", {"low": np.array(-0.5, np.float32), "high": np.array(1.0, np.float32)}, {}),
    "HardSigmoid": ("HardSigmoid", {}, {"alpha": 1 / 6}),
    "HardSwish": ("HardSwish", {}, {}),
    "LeakyRelu": ("LeakyRelu", {}, {"alpha": 0.2}),
    "Elu": ("Elu", {}, {"alpha": 0.7}),
    "Softmax": ("Softmax", {}, {"axis": 1}),
    "ReduceMean": ("ReduceMean", {}, {"axes": [2, 3], "keepdims": 0}),
    "ReduceSum": ("ReduceSum", {"axes": np.array([1])}, {}),
    "Transpose": ("Transpose", {}, {"perm": [0, 2, 3, 1]}),
    "Flatten": ("Flatten", {}, {"axis": 2}),
    "Reshape": ("Reshape", {"shape": np.array([0, -1, 7])}, {}),
    "Slice": (
        "Slice",
        {"s": np.array([5, 1]), "e": np.array([-9, 3]), "a": np.array([3, 1]), "t": np.array([-2, 1])},
        {},
    ),
    "Gather": ("Gather", {"places": np.array([[3, -4], [0, 1]])}, {"axis": 1}),
    "Pad": ("Pad", {"pads": np.array([0, 1, 0, 2, 0, 0, 1, 0]), "value": np.array(0.5, np.float32)}, {}),
    "Split": ("Split", {"sizes": np.array([1, 3])}, {"axis": 1}),
    "Unsqueeze": ("Unsqueeze", {"axes": np.array([-1, 0])}, {}),
    "GlobalMaxPool": ("GlobalMaxPool", {}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_operators_compute_what_onnxruntime_does(case: str) -> None:
    import onnxruntime

    op, constants, attributes = CASES[case]
    outputs = ["y", "z"] if op == "Split" else ["y"]
    node = helper.make_node(op, ["x", *constants], outputs, **attributes)
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    operands = [torch.from_numpy(X), *map(torch.from_numpy, constants.values())]
    found = OPERATORS[op](operands, attributes)
    every = found if isinstance(found, tuple) else (found,)
    for one, expected in zip(every, session.run(None, {"x": X}), strict=True):
        assert one.shape == expected.shape
        assert one.numpy() == pytest.approx(expected, rel=1e-5, abs=1e-5)
