"""Turn given models into plain modules: remove wrappers, make lazy layers; other models are refused with a one-line error."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from tailor_ir.errors import ImportFailed
from tailor_ir.reading.inputs import ExampleInputs

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
    modes = [(part, part.training) for part in model.modules()]
    try:
        with torch.no_grad():
            examples.call(model.eval(), examples.batches(1))
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ImportFailed(
            f"network '{type(model).__name__}': its lazy layers cannot be made with the example ({reason}); call the network "
            "once before compiling it"
        ) from error
    finally:
        for part, training in modes:
            part.training = training
