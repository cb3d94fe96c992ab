"""What holds for any network: it compiles or is refused in one line, and a SubNet is the same in its three forms."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import nn

import tailor_ir
from tailor_ir.errors import TailorError
from tailor_ir.spaces.selectors import Choice, SpaceSpec
from tailor_ir.subnets.onnx_export import subnet_onnx
from tests.support import examples
from tests.support.ir.invariants import EXPORT_TOLERANCE, ORIGINAL_TOLERANCE, difference

BATCHES = (1, 3)


def shaken(model: nn.Module, seed: int = 0) -> nn.Module:
    """The model in eval mode, its parameters and statistics all different, whatever they began as."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        for name, buffer in model.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.add_(torch.rand(buffer.shape, generator=generator))
    return model.eval()


def refusal(model: nn.Module, sample: torch.Tensor, space: SpaceSpec | None = None) -> str:
    """The one line with which a network is refused; "" where it compiles."""
    made = _compiled(model, sample, space)
    return made if isinstance(made, str) else ""


def _compiled(model: nn.Module, sample: torch.Tensor, space: SpaceSpec | None) -> tailor_ir.SuperNet | str:
    try:
        return tailor_ir.compile(model, sample, space)
    except TailorError as error:
        line = str(error)
    assert "\n" not in line, line
    return line


def check_forms(
    model: nn.Module, sample: torch.Tensor, space: SpaceSpec | None = None, subnets: int = 2
) -> tailor_ir.SuperNet | None:
    """Compile a network and check its largest SubNet against it, and some SubNets against themselves; None: it is refused."""
    net = _compiled(shaken(model), sample, space)
    if isinstance(net, str):
        return None
    net.elastic.eval().activate(net.max_config)
    with torch.no_grad():
        for batch in BATCHES:
            x = _drawn(net, net.max_config, sample, batch)
            assert difference(model(x), net.elastic(x)) <= ORIGINAL_TOLERANCE
    rng = np.random.default_rng(0)
    for config in [net.min_config, *(net.space.sample(rng) for _ in range(examples(subnets, 1)))]:
        check_subnet(net, config, sample)
    features = net.unique_operators()
    for feature in list(features)[:8]:
        tailor_ir.operator_model(feature)
    assert len(net.space.info) == len(net.space.variables)
    return net


def check_subnet(net: tailor_ir.SuperNet, config: Mapping[str, Choice], sample: torch.Tensor) -> None:
    """Elastic, built and exported are equal for one sample and for three; operators and memory are known."""
    built = net.build(config)
    for batch in BATCHES:
        x = _drawn(net, config, sample, batch)
        net.elastic.eval().activate(config)
        with torch.no_grad():
            expected = net.elastic(x)
            assert difference(expected, built(x)) <= ORIGINAL_TOLERANCE, config
        assert difference(expected, exported(net, config, x)) <= EXPORT_TOLERANCE, config
    assert net.peak_activation_bytes(config) >= 0
    assert set(net.operators(config)) <= net.unique_operators().keys()


def exported(net: tailor_ir.SuperNet, config: Mapping[str, Choice], x: torch.Tensor) -> list[torch.Tensor]:
    """What the exported file of a SubNet gives."""
    row = net.space.row(config)
    model = subnet_onnx(net.elastic, row, statistics=None, fold_batch_norm=False, batch=len(x), weights=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    answers: list[Any] = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    return [torch.from_numpy(np.asarray(answer)) for answer in answers]


def _drawn(net: tailor_ir.SuperNet, config: Mapping[str, Choice], like: torch.Tensor, batch: int) -> torch.Tensor:
    shape = net.input_shape(config, batch)
    generator = torch.Generator().manual_seed(batch)
    if like.is_floating_point():
        return torch.randn(shape, generator=generator)
    return torch.randint(0, int(like.max()) + 1, shape, generator=generator)
