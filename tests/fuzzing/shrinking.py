"""A small network with the same fault: nodes, inputs, settings and sizes are taken away as long as the fault stays."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from tests.fuzzing.checks import run_session, session_of
from tests.fuzzing.drafts import SAMPLES
from tests.fuzzing.networks import BATCH, DEFAULTS, Network, Shape, Step

Keeps = Callable[[Network], bool]
SIZES = (8, 4, 2)
SEVERAL = 3
"""So many samples are run together and alone."""
LEAST_SIZE = 5  # sizes above it are made smaller


def shrink(network: Network, keeps: Keeps, seconds: float = 60.0) -> Network:
    """The smallest network found for which `keeps` is true; that of the network itself has to be."""
    until = time.monotonic() + seconds
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(network):
            if time.monotonic() > until:
                return network
            if _weight(candidate) < _weight(network) and _kept(candidate, keeps):
                network, smaller = candidate, True
                break
    return network


def _kept(candidate: Network, keeps: Keeps) -> bool:
    try:
        return bool(candidate.steps) and separate(candidate) and keeps(candidate)
    except Exception:  # noqa: BLE001  a candidate that is no network is none with the fault
        return False


def separate(network: Network) -> bool:
    """Whether each sample has answers of its own, in the first axis of every output."""
    session, feeds = session_of(network.model()), network.feeds(SEVERAL, seed=0)
    together = run_session(session, feeds)
    for sample in range(SEVERAL):
        alone = run_session(session, {name: array[sample : sample + 1] for name, array in feeds.items()})
        for one, other in zip(together, alone, strict=True):
            if not one.ndim or one.shape[0] != SEVERAL * other.shape[0]:
                return False
            rows = one[sample * other.shape[0] : (sample + 1) * other.shape[0]]
            if not np.allclose(rows, other, rtol=1e-3, atol=1e-4):
                return False
    return True


def _weight(network: Network) -> tuple[int, ...]:
    """What is made smaller, the most important first."""
    sizes = [size for _, shape in network.inputs.values() for size in shape if isinstance(size, int)]
    sizes += [size for shape in network.weights.values() for size in shape]
    settings = sum(len(step.attributes) + len(step.read) for step in network.steps)
    others = sum(getattr(network, name) != DEFAULTS[name] for name in ("written", "opset", "fixed_batch"))
    return len(network.steps), len(network.outputs), len(network.inputs), settings, others, sum(sizes)


def _smaller(network: Network) -> Iterator[Network]:
    yield from _plain_settings(network)
    for made in (name for step in network.steps for name in step.made):
        yield replace(network, outputs=(made,)).needed()
    for output in network.outputs:
        yield replace(network, outputs=(output,)).needed()
        yield replace(network, outputs=tuple(name for name in network.outputs if name != output)).needed()
    yield from _from_the_middle(network)
    for step in network.steps:
        for source in step.read:
            yield _bypassed(network, step, source)
    for position, step in enumerate(network.steps):
        for name in step.attributes:
            kept = {key: value for key, value in step.attributes.items() if key != name}
            yield _with_step(network, position, replace(step, attributes=kept))
        for name in reversed(step.read[1:]):
            inputs = " ".join(each for each in step.inputs.split() if each != name)
            yield _with_step(network, position, replace(step, inputs=inputs))
    for size in sorted(_sizes(network), reverse=True):
        for other in SIZES:
            if other < size:
                yield _resized(network, size, other)


def _plain_settings(network: Network) -> Iterator[Network]:
    for name in ("written", "opset", "fixed_batch"):
        if getattr(network, name) != DEFAULTS[name]:
            yield replace(network, **{name: DEFAULTS[name]})


def _with_step(network: Network, position: int, step: Step) -> Network:
    return replace(network, steps=(*network.steps[:position], step, *network.steps[position + 1 :])).needed()


def _bypassed(network: Network, step: Step, source: str) -> Network:
    """Without a node, whose results are one of its operands."""
    names = dict.fromkeys(step.made, source)

    def renamed(inputs: str) -> str:
        return " ".join(names.get(name, name) for name in inputs.split())

    steps = tuple(replace(each, inputs=renamed(each.inputs)) for each in network.steps if each is not step)
    outputs = tuple(dict.fromkeys(names.get(name, name) for name in network.outputs))
    return replace(network, steps=steps, outputs=outputs).needed()


def _from_the_middle(network: Network) -> Iterator[Network]:
    """A computed value as an input, the latest first."""
    shapes = _shapes(network)
    for step in reversed(network.steps):
        for name in step.made:
            if name in shapes and name not in network.outputs:
                steps = tuple(each for each in network.steps if each is not step)
                kind, shape = shapes[name]
                yield replace(network, steps=steps, inputs={**network.inputs, name: (kind, shape)}).needed()


def _shapes(network: Network) -> dict[str, tuple[str, Shape]]:
    """Values of numbers whose first axis, and no other, is the batch."""
    found: list[dict[str, tuple[int, ...]]] = []
    for samples in SAMPLES:
        model = onnx.shape_inference.infer_shapes(network.model(samples), data_prop=True)
        infos = [info for info in model.graph.value_info if info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT]
        found.append({info.name: tuple(d.dim_value for d in info.type.tensor_type.shape.dim) for info in infos})
    one, other = found
    plain = {
        name: ("float32", (BATCH, *shape[1:]))
        for name, shape in one.items()
        if shape and all(shape) and shape[0] == SAMPLES[0] and other.get(name) == (SAMPLES[1], *shape[1:])
    }
    return {name: given for name, given in plain.items() if name not in network.inputs}  # type: ignore[misc]


def _sizes(network: Network) -> set[int]:
    shapes = [shape for _, shape in network.inputs.values()]
    found = {size for shape in (*shapes, *network.weights.values()) for size in shape if isinstance(size, int)}
    return {size for size in found if size >= LEAST_SIZE}


def _resized(network: Network, size: int, other: int) -> Network:
    """One number everywhere in the place of another, in the products that it is in as well."""

    def of(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(of(each) for each in value)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0 and value % size == 0:
            return value // size * other
        return value

    def of_shapes(shapes: Mapping[str, Any]) -> dict[str, Any]:
        return {name: of(shape) for name, shape in shapes.items()}

    steps = tuple(
        replace(step, attributes={name: of(value) for name, value in step.attributes.items()}) for step in network.steps
    )
    return replace(
        network,
        steps=steps,
        inputs={name: (kind, of(shape)) for name, (kind, shape) in network.inputs.items()},
        weights=of_shapes(network.weights),
        constants=of_shapes(network.constants),
    )
