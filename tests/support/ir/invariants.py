"""What holds for every network: the largest SubNet is the original, and each SubNet is the same in its three forms."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import nn

import tailor_ir
from tailor_ir.reading.inputs import GivenExample
from tailor_ir.spaces.selectors import Choice
from tailor_ir.subnets.plans import make_cut
from tests.support import examples

ORIGINAL_TOLERANCE = 2e-5  # relative to the largest value, fp32
EXPORT_TOLERANCE = 1e-4
GRADIENT_TOLERANCE = 1e-3
NO_GRADIENT = 1e-6  # of the largest: rounding alone, as before a normalisation


def outputs_of(answer: Any) -> tuple[torch.Tensor, ...]:
    """The tensors that a network gives, alone or in tuples, lists and dictionaries."""
    if isinstance(answer, Mapping):
        answer = tuple(answer.values())
    if isinstance(answer, tuple | list):
        return tuple(tensor for part in answer for tensor in outputs_of(part))
    return (answer,)


def difference(a: Any, b: Any) -> float:
    """Largest difference relative to the largest value; of several outputs, the worst."""
    pairs = list(zip(outputs_of(a), outputs_of(b), strict=True))
    assert all(x.shape == y.shape for x, y in pairs), [(x.shape, y.shape) for x, y in pairs]
    # not Python's max, which can miss a NaN
    return float(torch.stack([(x - y).abs().max() / x.abs().max().clamp_min(1e-12) for x, y in pairs]).max())


def random_input(shape: tuple[int, ...], like: torch.Tensor, seed: int) -> torch.Tensor:
    """Numbers, or for integers tokens of the range that `like` has."""
    generator = torch.Generator().manual_seed(seed)
    if like.is_floating_point():
        return torch.randn(shape, generator=generator)
    return torch.randint(0, int(like.max()) + 1, shape, generator=generator)


def random_inputs(
    net: tailor_ir.SuperNet, config: Mapping[str, Choice], sample: GivenExample, seed: int, batch: int = 2
) -> tuple[torch.Tensor, ...]:
    """A random batch of each input of a SubNet, in order."""
    shapes = net.input_shapes(config, batch).values()
    return tuple(random_input(shape, like, seed) for shape, like in zip(shapes, _samples(sample), strict=True))


def _samples(sample: GivenExample) -> tuple[torch.Tensor, ...]:
    if isinstance(sample, torch.Tensor):
        return (sample,)
    return tuple(sample.values() if isinstance(sample, Mapping) else sample)


def gradients_of(model: Callable[..., Any], *x: torch.Tensor, seed: int = 4) -> None:
    """Backward through a random projection of the outputs."""
    generator = torch.Generator().manual_seed(seed)
    sums = [(y * torch.randn(y.shape, generator=generator)).sum() for y in outputs_of(model(*x))]
    torch.stack(sums).sum().backward()


def check_largest(net: tailor_ir.SuperNet, model: nn.Module, sample: GivenExample) -> None:
    """Outputs of the largest SubNet, elastic and built, and gradients of every parameter, are the original's."""

    def original(*given: torch.Tensor) -> Any:
        return model(**dict(zip(sample, given, strict=True))) if isinstance(sample, Mapping) else model(*given)

    x = random_inputs(net, net.max_config, sample, seed=2)
    net.elastic.eval().activate(net.max_config)
    with torch.no_grad():
        expected = original(*x)
        assert difference(expected, net.elastic(*x)) <= ORIGINAL_TOLERANCE
        assert difference(expected, net.build(net.max_config)(*x)) <= ORIGINAL_TOLERANCE
    model.zero_grad()
    net.elastic.zero_grad()
    gradients_of(original, *x)
    gradients_of(net.elastic, *x)
    largest = max(float(p.grad.abs().max()) for p in model.parameters() if p.grad is not None)
    for name, parameter in model.named_parameters():
        if parameter.grad is None or float(parameter.grad.abs().max()) <= NO_GRADIENT * largest:
            continue
        own = net.elastic.weights[name.replace(".", "/")].grad
        assert own is not None, name
        kept = own if own.shape == parameter.shape else own.T  # weights (in, out) are kept as (out, in)
        assert difference(parameter.grad, kept) <= GRADIENT_TOLERANCE, name


def check_subnet(net: tailor_ir.SuperNet, config: Mapping[str, Choice], folder: Path, sample: GivenExample) -> None:
    """One SubNet: elastic, built and in onnxruntime; gradients of elastic and built agree where weights are shared."""
    x = random_inputs(net, config, sample, seed=3)
    net.elastic.eval().activate(config)
    with torch.no_grad():
        expected = net.elastic(*x)
    built = net.build(config)
    with torch.no_grad():
        assert difference(expected, built(*x)) <= ORIGINAL_TOLERANCE, config
    for fold in (False, True):
        net.export(config, folder / "subnet.onnx", fold_batch_norm=fold, batch=2)
        session = onnxruntime.InferenceSession(folder / "subnet.onnx", providers=["CPUExecutionProvider"])
        given = {one.name: tensor.numpy() for one, tensor in zip(session.get_inputs(), x, strict=True)}
        exported = session.run(None, given)
        assert difference(expected, list(map(torch.from_numpy, exported))) <= EXPORT_TOLERANCE, config
    net.elastic.zero_grad()
    gradients_of(net.elastic, *x)
    gradients_of(built, *x)
    assert _shared_gradients(net, config, built) > 0


def _shared_gradients(net: tailor_ir.SuperNet, config: Mapping[str, Choice], built: nn.Module) -> int:
    """Compare the gradients of weights that both forms have; how many there are."""
    elastic = net.elastic
    sizes = net.space.sizes(net.space.row(config))
    copies = [p for p in built.parameters() if p.grad is not None and p.numel() > 1]
    largest = max(float(p.grad.abs().max()) for p in copies)  # type: ignore[union-attr]
    compared = 0
    for name in elastic.structure.graph.parameters:
        whole = elastic.tensor(name)
        cut = make_cut(elastic.structure.axis_map.axes[name], sizes)
        part = whole if cut is None else cut(whole)
        same = [p for p in copies if p.shape == part.shape and torch.equal(p, part)]
        if len(same) != 1 or whole.grad is None:
            continue
        gradient = whole.grad if cut is None else cut(whole.grad)
        if float(gradient.abs().max()) <= NO_GRADIENT * largest:
            continue
        assert difference(same[0].grad, gradient) <= GRADIENT_TOLERANCE, name
        outside = float(whole.grad.double().abs().sum() - gradient.double().abs().sum())
        assert abs(outside) <= 1e-6 * float(whole.grad.double().abs().sum()) + 1e-9, name
        compared += 1
    return compared


def check_network(model: nn.Module, sample: GivenExample, folder: Path, subnets: int = 5) -> tailor_ir.SuperNet:
    """All invariants on the smallest SubNet and random ones, in `make test` one of them; the SuperNet."""
    net = tailor_ir.compile(model, sample)
    check_largest(net, model, sample)
    rng, unique = np.random.default_rng(0), net.unique_operators().keys()
    for config in [net.min_config, *(net.space.sample(rng) for _ in range(examples(subnets, 1)))]:
        check_subnet(net, config, folder, sample)
        assert set(net.operators(config)) <= unique
    return net


def operators_of(net: tailor_ir.SuperNet) -> set[str]:
    """Names of the operators that the network has after all rewriting."""
    return {node.op for node in net.structure.graph.nodes}
