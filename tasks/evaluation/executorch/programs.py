"""SubNets and single operators as torch programs, and as jobs for an agent that runs ExecuTorch."""

import io
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import nn

from profiling_agents.backends.onnx_files import read_onnx, with_filled_tensors
from profiling_agents.backends.own_names import OwnNames
from profiling_agents.client import ModelJob
from profiling_agents.messages import Shape
from tailor_ir import Config, OperatorFeature, Statistics, SuperNet, operator_model
from tasks.base.errors import shortened
from tasks.evaluation.conversion import DEFAULT_LIMITS, ConversionError, ConversionLimits, lower

T = TypeVar("T")
Outcome = ModelJob | ConversionError
_Program = tuple[bytes, tuple[Shape, ...], int]
"""A torch program (.pt2), the shapes of its inputs, and the number of its outputs."""


def jobs_of_modules(
    modules: Mapping[str, tuple[nn.Module, Sequence[Shape]]], limits: ConversionLimits = DEFAULT_LIMITS
) -> dict[str, Outcome]:
    """Jobs of networks by key, in order. modules: each network with the shapes of its inputs. A failure yields an error."""

    def program(network: tuple[nn.Module, Sequence[Shape]]) -> _Program:
        module, shapes = network
        return _program(module, shapes)

    return _jobs({key: _attempt(program, network) for key, network in modules.items()}, limits)


def subnet_jobs(
    subnets: Mapping[str, tuple[SuperNet, Config]],
    limits: ConversionLimits,
    statistics: Statistics | None = None,
) -> dict[str, Outcome]:
    """Jobs of SubNets by key, in order, with their weights; a failed conversion yields an error.

    statistics: BatchNorm statistics; None: the SuperNet's.
    """

    def program(subnet: tuple[SuperNet, Config]) -> _Program:
        net, config = subnet
        return _program(net.build(config, statistics).eval(), (net.input_shape(dict(config)),))

    return _jobs({key: _attempt(program, subnet) for key, subnet in subnets.items()}, limits)


def operator_jobs(features: Sequence[OperatorFeature], limits: ConversionLimits) -> dict[str, Outcome]:
    """Jobs of single operators by digest, in order; a failed conversion yields an error."""

    import onnx2torch  # takes seconds: it imports torchvision

    def program(feature: OperatorFeature) -> _Program:
        model = with_filled_tensors(read_onnx(operator_model(feature), OwnNames()))
        return _program(onnx2torch.convert(model).eval(), feature.input_shapes)

    return _jobs({feature.digest: _attempt(program, feature) for feature in features}, limits)


def _program(module: nn.Module, shapes: Sequence[Shape]) -> _Program:
    example = tuple(torch.zeros(shape) for shape in shapes)
    exported = torch.export.export(module.requires_grad_(False), example)
    content = io.BytesIO()
    torch.export.save(exported, content)
    return content.getvalue(), tuple(shapes), len(exported.graph_signature.user_outputs)


def _attempt(program: Callable[[T], _Program], model: T) -> _Program | ConversionError:
    try:
        return program(model)
    except Exception as error:  # noqa: BLE001 - of many kinds, none of them ours
        return ConversionError(f"torch.export: {shortened(error)}")


def _jobs(programs: Mapping[str, _Program | ConversionError], limits: ConversionLimits) -> dict[str, Outcome]:
    found = {key: one for key, one in programs.items() if not isinstance(one, ConversionError)}
    outcomes = dict(zip(found, lower([content for content, _, _ in found.values()], limits), strict=True))
    jobs: dict[str, Outcome] = {}
    for key, program in programs.items():
        outcome = program if isinstance(program, ConversionError) else outcomes[key]
        if isinstance(outcome, ConversionError):
            jobs[key] = outcome
        else:
            _, shapes, outputs = found[key]
            jobs[key] = _job(key, outcome, shapes, outputs)
    return jobs


def _job(key: str, content: bytes, shapes: Sequence[Shape], outputs: int) -> ModelJob:
    """The job of a program. Programs have no names, so the job numbers the inputs and outputs."""
    return ModelJob(
        key=key,
        format="executorch",
        files=(content,),
        input_names=tuple(f"in{number}" for number in range(len(shapes))),
        input_shapes=tuple(shapes),
        output_names=tuple(f"out{number}" for number in range(outputs)),
    )
