"""Examples of a network's inputs: one sample of each, or one line that says what is wrong."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import torch
from torch import nn

from tailor_ir.errors import ImportFailed

GivenExample = torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor]
"""One sample of a network's only input, (1, C, H, W), or of each input: in order, or by name."""
ALLOWED = "allowed: one tensor (1, C, H, W), or one for each input, in a tuple or a mapping by name"
INPUT = "input"
"""Name of a network's only input."""
BY_ORDER = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleInputs:
    """Examples of a module's inputs, in order. names: of the inputs in the graph.

    tensors: one sample of each or more, (N, …). keywords: names of the module's arguments; () where it takes them in order.
    """

    names: tuple[str, ...]
    tensors: tuple[torch.Tensor, ...]
    keywords: tuple[str, ...] = ()

    def batches(self, samples: int) -> tuple[torch.Tensor, ...]:
        """The first sample of each input, repeated."""
        return tuple(one[:1].expand(samples, *one.shape[1:]).contiguous() for one in self.tensors)

    def call(self, function: Callable[..., Any], given: Sequence[torch.Tensor]) -> Any:
        """What a module, or its `forward`, answers to a batch of each input."""
        if self.keywords:
            return function(**dict(zip(self.keywords, given, strict=True)))
        return function(*given)


def examples_of_module(module: nn.Module, example: object) -> ExampleInputs:
    """Examples of all inputs that a module needs. ImportFailed: some are missing, unknown, or no tensors."""
    given = _checked(example)
    parameters = _parameters(module)
    if isinstance(given, Mapping):
        keywords = tuple(given)
        _check_names(module, parameters, keywords)
        named, tensors = keywords, tuple(given.values())
    else:
        keywords, tensors = (), given
        ordered = _check_order(module, parameters, len(given))
        named = ordered if len(given) > 1 else (INPUT,)
    taken = module.state_dict().keys()
    names = tuple(f"{name}_{INPUT}" if name in taken else name for name in named)
    return ExampleInputs(names=names, tensors=tensors, keywords=keywords)


def examples_of_file(model: onnx.ModelProto, example: object) -> dict[str, tuple[int, ...]]:
    """Input name -> shape of its example; {} without examples. ImportFailed: there are others than the file has inputs."""
    if example is None:
        return {}
    given = _checked(example)
    stored = {tensor.name for tensor in model.graph.initializer}
    names = [one.name for one in model.graph.input if one.name not in stored]
    named = given if isinstance(given, Mapping) else dict(zip(names, given, strict=False))
    if len(named) != len(given) or set(named) != set(names):
        told = ", ".join(given) if isinstance(given, Mapping) else str(len(given))
        raise ImportFailed(f"network: examples of {told}; allowed: one of each input ({', '.join(names)})")
    return {name: tuple(tensor.shape) for name, tensor in named.items()}


def _checked(example: object) -> tuple[torch.Tensor, ...] | Mapping[str, torch.Tensor]:
    """Tensors with a common batch axis, in order or by name."""
    if example is None:
        raise ImportFailed(f"network: no example input; {ALLOWED}")
    if isinstance(example, Mapping):
        tensors = list(example.values())
    else:
        tensors = list(example) if isinstance(example, tuple | list) else [example]
    if not tensors:
        raise ImportFailed(f"example input: an empty {type(example).__name__}; {ALLOWED}")
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise ImportFailed(f"example input: got {type(tensor).__name__}; {ALLOWED}")
        if not tensor.ndim or not tensor.numel():
            raise ImportFailed(f"example input: a tensor of shape {tuple(tensor.shape)}; {ALLOWED}")
    if len({len(tensor) for tensor in tensors}) != 1:
        sizes = ", ".join(str(len(tensor)) for tensor in tensors)
        raise ImportFailed(
            f"example input: tensors of {sizes} samples; allowed: the first axis of each is the same batch"
        )
    return dict(example) if isinstance(example, Mapping) else tuple(tensors)


def _parameters(module: nn.Module) -> Sequence[inspect.Parameter] | None:
    """What a module can be called with; None for compiled modules, where running them says what is missing."""
    try:
        return tuple(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):
        return None


def _needed(parameters: Iterable[inspect.Parameter]) -> list[str]:
    return [one.name for one in parameters if one.kind in (*BY_ORDER, *BY_NAME) and one.default is one.empty]


def _check_order(module: nn.Module, parameters: Sequence[inspect.Parameter] | None, count: int) -> tuple[str, ...]:
    """Names of the first `count` arguments of a module. ImportFailed: it needs more, or takes fewer."""
    numbered = tuple(f"{INPUT}_{number}" for number in range(count))
    if parameters is None:
        return numbered
    ordered = [one.name for one in parameters if one.kind in BY_ORDER]
    needed = _needed(parameters)
    missing = [name for name in needed if name not in ordered[:count]]
    if missing:
        raise ImportFailed(
            f"network '{type(module).__name__}': {len(needed)} inputs ({', '.join(needed)}), examples of {count}; "
            "allowed: one of each, in a tuple or a mapping by name; or give the others fixed values, in a module around it"
        )
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return numbered
    if count > len(ordered):
        raise ImportFailed(
            f"network '{type(module).__name__}': {count} examples; allowed: up to {len(ordered)} ({', '.join(ordered)})"
        )
    return tuple(ordered[:count])


def _check_names(module: nn.Module, parameters: Sequence[inspect.Parameter] | None, names: Sequence[str]) -> None:
    """ImportFailed: a module has no argument of such a name, or needs others."""
    where = f"network '{type(module).__name__}'"
    if parameters is None:
        raise ImportFailed(f"{where}: the names of its inputs are not known; allowed: examples in a tuple, in order")
    known = [one.name for one in parameters if one.kind in BY_NAME]
    unknown = [name for name in names if name not in known]
    if unknown and not any(one.kind is one.VAR_KEYWORD for one in parameters):
        raise ImportFailed(f"{where}: no input '{unknown[0]}'; allowed: {', '.join(known)}")
    missing = [name for name in _needed(parameters) if name not in names]
    if missing:
        raise ImportFailed(f"{where}: no example of input '{missing[0]}'; allowed: one of each ({', '.join(known)})")
