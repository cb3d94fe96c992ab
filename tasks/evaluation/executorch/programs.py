"""SubNets and single operators as torch programs, and as jobs for an agent that runs ExecuTorch."""

import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import nn

from profiling_agents.backends.onnx_files import read_onnx, with_filled_tensors
from profiling_agents.backends.sanitized_names import SanitizedNames
from profiling_agents.client import ModelJob
from profiling_agents.messages import Shape
from tailor_ir import Config, OperatorFeature, Statistics, SuperNet, operator_model
from tasks.base.errors import shortened
from tasks.evaluation.conversion import DEFAULT_LIMITS, ConversionError, ConversionLimits, lower

Outcome = ModelJob | ConversionError
_Program = tuple[bytes, tuple[Shape, ...], int]
"""A torch program (.pt2), the shapes of its inputs, and the number of its outputs."""


def jobs_of_modules(
    modules: Mapping[str, tuple[nn.Module, Sequence[Shape]]], limits: ConversionLimits = DEFAULT_LIMITS
) -> dict[str, Outcome]:
    """Jobs of networks by key, in order. modules: each network with the shapes of its inputs. A failure yields an error."""
    return _jobs({key: partial(_program, *network) for key, network in modules.items()}, limits)


def subnet_jobs(
    subnets: Mapping[str, tuple[SuperNet, Config]], limits: ConversionLimits, statistics: Statistics | None = None
) -> dict[str, Outcome]:
    """Jobs of SubNets by key, in order, with their weights; a failed conversion yields an error.

    statistics: BatchNorm statistics; None: the SuperNet's.
    """

    def program(net: SuperNet, config: Config) -> _Program:
        return _program(net.build(config, statistics).eval(), (net.input_shape(dict(config)),))

    return _jobs({key: partial(program, *subnet) for key, subnet in subnets.items()}, limits)


def operator_jobs(features: Sequence[OperatorFeature], limits: ConversionLimits) -> dict[str, Outcome]:
    """Jobs of single operators by digest, in order; a failed conversion yields an error."""

    import onnx2torch  # takes seconds: it imports torchvision

    def program(feature: OperatorFeature) -> _Program:
        model = with_filled_tensors(read_onnx(operator_model(feature), SanitizedNames()))
        return _program(onnx2torch.convert(model).eval(), feature.input_shapes)

    return _jobs({feature.digest: partial(program, feature) for feature in features}, limits)


def _program(module: nn.Module, shapes: Sequence[Shape]) -> _Program:
    example = tuple(torch.zeros(shape) for shape in shapes)
    exported = torch.export.export(module.requires_grad_(False), example)
    content = io.BytesIO()
    torch.export.save(exported, content)
    return content.getvalue(), tuple(shapes), len(exported.graph_signature.user_outputs)


def _jobs(builders: Mapping[str, Callable[[], _Program]], limits: ConversionLimits) -> dict[str, Outcome]:
    """The jobs of programs, which are named by number: programs have no names of inputs and outputs."""
    found: dict[str, _Program] = {}
    outcomes: dict[str, Outcome] = {}
    for key, make in builders.items():
        try:
            found[key] = make()
        except Exception as error:  # noqa: BLE001 - of many kinds, none of them ours
            outcomes[key] = ConversionError(f"torch.export: {shortened(error)}")
    lowered = lower([content for content, _, _ in found.values()], limits)
    for (key, (_, shapes, outputs)), outcome in zip(found.items(), lowered, strict=True):
        outcomes[key] = (
            outcome
            if isinstance(outcome, ConversionError)
            else ModelJob(
                key=key,
                format="executorch",
                files=(outcome,),
                input_names=tuple(f"in{number}" for number in range(len(shapes))),
                input_shapes=tuple(shapes),
                output_names=tuple(f"out{number}" for number in range(outputs)),
            )
        )
    return {key: outcomes[key] for key in builders}
