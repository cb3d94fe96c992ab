"""Inputs of the reader: examples of a network's inputs, one sample each, and given models as plain modules.

Wrappers are removed, and lazy layers made; other models are refused with a one-line error.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice, product
from typing import Any

import onnx
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from tailor_ir.errors import ImportFailed, first_line
from tailor_ir.graph import NO_BATCH

GivenExample = torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor]
"""One sample of a network's only input, (1, C, H, W), or of each input: in order, or by name."""
ALLOWED = "allowed: one tensor (1, C, H, W), or one for each input, in a tuple or a mapping by name"
MOST_LAYOUTS = 64  # choices of batch axes that are tried
INPUT = "input"
"""Name of a network's only input."""
BY_ORDER = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleInputs:
    """Examples of a module's inputs, in order. names: names of the inputs in the graph.

    tensors: one or more samples of each input, (N, …). keywords: names of the module's arguments; () for positional arguments.
    batch_axes: batch axis of each input, NO_BATCH without one; (): the first axis of all. settings: integers without an axis,
    which are kept constant and are no inputs of the graph; by position among the module's `arguments`.
    """

    names: tuple[str, ...]
    tensors: tuple[torch.Tensor, ...]
    keywords: tuple[str, ...] = ()
    batch_axes: tuple[int, ...] = ()
    settings: Mapping[int, torch.Tensor] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()

    @property
    def remarks(self) -> tuple[str, ...]:
        """One line per argument that is kept constant and so is no input of the SuperNet."""
        return tuple(kept_constant(self.arguments[position], tensor) for position, tensor in self.settings.items())

    @property
    def axes(self) -> tuple[int, ...]:
        """Batch axis of each input; NO_BATCH for an input without one."""
        return self.batch_axes or (0,) * len(self.tensors)

    def batches(self, samples: int) -> tuple[torch.Tensor, ...]:
        """The first sample of each input, repeated."""
        return tuple(_repeated(one, axis, samples) for one, axis in zip(self.tensors, self.axes, strict=True))

    def call(self, function: Callable[..., Any], given: Sequence[torch.Tensor]) -> Any:
        """The answer of a module, or of its `forward`, to a batch of each input."""
        rest = iter(given)
        count = len(self.tensors) + len(self.settings)
        whole = [self.settings[i].clone() if i in self.settings else next(rest) for i in range(count)]
        if self.keywords:
            return function(**dict(zip(self.keywords, whole, strict=True)))
        return function(*whole)

    def layouts(self, module: nn.Module, samples: int) -> Iterator["ExampleInputs"]:
        """Copies with each choice of batch axes for which the module accepts this number of samples, the likeliest first.

        Order: the first axis of each input, then other axes of the same size, then inputs that all samples share; then the
        same with axes of size 1. If the module accepts no choice, yields the examples unchanged.
        ImportFailed: the module accepts no choice, and the first axes differ.
        """
        some = False
        for axes in islice(self._layouts(), MOST_LAYOUTS):
            found = replace(self, batch_axes=axes) if any(axes) else self
            if axes == (0,) or _runs(module, found, samples):
                some = True
                yield found
        if some:
            return
        sizes = [len(tensor) for tensor in self.tensors if tensor.ndim]
        if len({*sizes}) > 1:
            raise ImportFailed(
                f"example input: tensors of {', '.join(map(str, sizes))} samples; allowed: the first axis of each is the same "
                "batch, or another axis that the network takes as the batch"
            )
        yield self

    def _layouts(self) -> Iterator[tuple[int, ...]]:
        first = next(len(tensor) for tensor in self.tensors if tensor.ndim)
        found: dict[tuple[int, ...], None] = {}
        for entries in (first, 1):
            choices = [[axis for axis, size in enumerate(t.shape) if size == entries] for t in self.tensors]
            ways = [axes for axes in product(*([*each, NO_BATCH] for each in choices)) if {*axes} != {NO_BATCH}]
            ways.sort(key=lambda axes: (0 not in axes, sum(axis != 0 for axis in axes)))
            found |= dict.fromkeys(ways)
        yield from found


def _repeated(tensor: torch.Tensor, axis: int, samples: int) -> torch.Tensor:
    if axis == NO_BATCH:
        return tensor
    return tensor.narrow(axis, 0, 1).repeat_interleave(samples, axis)


@contextmanager
def evaluated(module: nn.Module) -> Iterator[None]:
    """While inside, the module is in eval mode; its modes are restored afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def _runs(module: nn.Module, examples: ExampleInputs, samples: int) -> bool:
    try:
        with evaluated(module), torch.no_grad():
            examples.call(module, examples.batches(samples))
    except Exception:  # noqa: BLE001 - what a module refuses, and how, is its own; the next axes are tried
        return False
    return True


def examples_of_module(module: nn.Module, example: object) -> ExampleInputs:
    """Examples of all inputs that a module needs. ImportFailed: an example is missing, unknown or no tensor."""
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
    settings = {i: tensor for i, tensor in enumerate(tensors) if not tensor.ndim and not tensor.is_floating_point()}
    names = tuple(f"{name}_{INPUT}" if name in taken else name for i, name in enumerate(named) if i not in settings)
    inputs = tuple(tensor for i, tensor in enumerate(tensors) if i not in settings)
    return ExampleInputs(
        names=names, tensors=inputs, keywords=keywords, settings=settings, arguments=tuple(named) if settings else ()
    )


def kept_constant(name: str, value: object) -> str:
    """Remark on an input that is a single integer."""
    return f"input '{name}' is kept as the constant {value.item() if isinstance(value, torch.Tensor) else value}"


def examples_of_file(model: onnx.ModelProto, example: object) -> dict[str, torch.Tensor]:
    """Input name -> its example; {} without examples. ImportFailed: the examples do not match the inputs of the file."""
    if example is None:
        return {}
    given = _checked(example)
    stored = {tensor.name for tensor in model.graph.initializer}
    names = [one.name for one in model.graph.input if one.name not in stored]
    named = given if isinstance(given, Mapping) else dict(zip(names, given, strict=False))
    if len(named) != len(given) or set(named) != set(names):
        described = ", ".join(given) if isinstance(given, Mapping) else str(len(given))
        raise ImportFailed(f"network: examples of {described}; allowed: one of each input ({', '.join(names)})")
    return dict(named)


def _checked(example: object) -> tuple[torch.Tensor, ...] | Mapping[str, torch.Tensor]:
    """Tensors, in order or by name; at least one of them has an axis for the batch."""
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
        if not tensor.numel() or not any(each.ndim for each in tensors if isinstance(each, torch.Tensor)):
            raise ImportFailed(f"example input: a tensor of shape {tuple(tensor.shape)}; {ALLOWED}")
    return dict(example) if isinstance(example, Mapping) else tuple(tensors)


def _parameters(module: nn.Module) -> Sequence[inspect.Parameter] | None:
    """Parameters of a module's `forward`; None for compiled modules without a signature."""
    try:
        return tuple(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):
        return None


def _needed(parameters: Iterable[inspect.Parameter]) -> list[str]:
    return [one.name for one in parameters if one.kind in (*BY_ORDER, *BY_NAME) and one.default is one.empty]


def _check_order(module: nn.Module, parameters: Sequence[inspect.Parameter] | None, count: int) -> tuple[str, ...]:
    """Names of the first `count` arguments of a module. ImportFailed: the module needs more arguments, or takes fewer."""
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
    """ImportFailed: a name is no argument of the module, or a required argument is missing."""
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


WRAPPED = (
    "torch.ao.nn.quantized",
    "torch.ao.nn.intrinsic.quantized",
    "torch.ao.nn.sparse.quantized",
    "torch.nn.quantized",
)
"""Packages of quantised layers; dynamically quantised layers are in subpackages."""
TO_FILE = (
    "torch.onnx.export(model, example, 'network.onnx', dynamo=False, do_constant_folding=False, "
    "training=torch.onnx.TrainingMode.PRESERVE)"
)


def plain_module(model: object) -> nn.Module:
    """The network without wrappers of DataParallel and torch.compile. ImportFailed: the model cannot be traced."""
    given = type(model).__name__
    if isinstance(model, torch.export.ExportedProgram):
        raise ImportFailed(
            "network: an ExportedProgram, whose batch may be fixed; allowed: the module that it was made from, or an .onnx "
            "file with an open batch (torch.onnx.export(program, dynamo=True).save('network.onnx'))"
        )
    if not isinstance(model, nn.Module):
        raise ImportFailed(
            f"network: got {given}; allowed: a module of torch, the path of an .onnx file, or its content"
        )
    while (inner := _inside(model)) is not None:
        model = inner
    if isinstance(model, torch.jit.ScriptModule):
        raise ImportFailed(
            f"network '{given}': TorchScript, which cannot be traced; allowed: the module that it was made from; or write "
            f"{TO_FILE} and give the file"
        )
    where = f"network '{type(model).__name__}'"
    quantised = next(_quantised(model), None)
    if quantised is not None:
        raise ImportFailed(
            f"{where}: {quantised} is quantised; allowed: floating-point networks; give the one before quantisation (exported "
            "SubNets can be quantised)"
        )
    empty = [name for name, tensor in model.state_dict().items() if tensor.is_meta and not is_lazy(tensor)]
    if empty:
        raise ImportFailed(
            f"{where}: '{empty[0]}' is on the device 'meta' and holds no numbers; load the weights first"
        )
    return model


def _inside(model: nn.Module) -> nn.Module | None:
    """The module inside a wrapper; None if the model is no wrapper."""
    if isinstance(model, nn.DataParallel | DistributedDataParallel):
        return model.module
    inner = vars(model).get("_modules", {}).get("_orig_mod")  # attribute of torch.compile's OptimizedModule
    return inner if isinstance(inner, nn.Module) else None


def _quantised(model: nn.Module) -> Iterator[str]:
    for name, part in model.named_modules():
        if type(part).__module__.startswith(WRAPPED):
            yield f"layer '{name}' ({type(part).__name__})"
    for name, value in model.state_dict().items():
        if not isinstance(value, torch.Tensor):
            yield f"'{name}' of the state ({type(value).__name__})"
        elif value.is_quantized:
            yield f"tensor '{name}'"


def make_lazy_layers(model: nn.Module, examples: ExampleInputs) -> None:
    """Give lazy layers their sizes by a first call with the example. ImportFailed: the call fails."""
    if not any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        return
    try:
        with evaluated(model), torch.no_grad():
            examples.call(model, examples.batches(1))
    except Exception as error:
        raise ImportFailed(
            f"network '{type(model).__name__}': its lazy layers cannot be made with the example "
            f"({first_line(error)}); call the network once before compiling it"
        ) from error
