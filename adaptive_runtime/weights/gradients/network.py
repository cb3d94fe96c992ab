"""A SubNet of a bundle in torch, differentiable by the scales and biases of its BatchNorms.

Legend: B batch, C channels, H height, W width, K classes, F channels of all BatchNorms.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import helper, numpy_helper

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.bundles import AdaptableNet
from adaptive_runtime.weights.gradients.operators import OPERATORS, Compute
from adaptive_runtime.weights.network import INPUTS, OUTPUTS
from adaptive_runtime.weights.scales import EntropyGradients, NormScales
from adaptive_runtime.weights.statistics import Array, NormStatistics, spans

BATCH_NORM = "BatchNormalization"
EPSILON = 1e-5
"""Default of BatchNormalization in ONNX."""
Values = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Step:
    """A node. own: slice of a BatchNorm's channels among the channels of all BatchNorms; None: no BatchNorm."""

    node: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    own: slice | None


class DifferentiableNetwork:
    """The file `AdaptableNet.file` in torch, `images` images at once, with this number of threads.

    It computes the values of `ObservedNetwork`, since it is the same file. scales: those of the file. epsilon_F: (F,).
    AdaptiveError: the SubNet has an operator that cannot be differentiated here.
    """

    def __init__(self, file: Path, net: AdaptableNet, threads: int) -> None:
        graph = onnx.load(file).graph
        self._threads = threads
        self._where = f"'{file.name}'"
        self._taken, self._given = graph.input[0].name, graph.output[0].name
        self._constants: Values = {one.name: torch.tensor(numpy_helper.to_array(one)) for one in graph.initializer}
        own = iter(spans(net.norms))
        steps = [_step(node, next(own) if node.op_type == BATCH_NORM else None) for node in graph.node]
        with torch.no_grad():
            self._steps = [one for one in steps if not self._becomes_constant(one)]
        norms = [one for one in self._steps if one.own is not None]
        needed = {name for one in self._steps for name in one.inputs}
        scale_F, bias_F = (torch.cat([self._constants[one.inputs[at]] for one in norms]) for at in (1, 2))
        self.scales = NormScales(scale_F.numpy(), bias_F.numpy())
        each = [
            torch.full_like(self._constants[one.inputs[1]], one.attributes.get("epsilon", EPSILON)) for one in norms
        ]
        self.epsilon_F: Array = torch.cat(each).numpy()
        self._constants = {name: value.clone() for name, value in self._constants.items() if name in needed}

    def entropy_gradients(
        self, x_BCHW: Array, scales: NormScales, source: NormStatistics, share: float, sure_share: float | None
    ) -> EntropyGradients:
        """Gradients of the entropies of a batch's answers by scales and biases.

        Each BatchNorm normalises by the statistics of the batch with weight `share` and by the source's otherwise; gradients
        flow through the statistics of the batch. sure_share: only images with an entropy below this share of ln K count, each
        with the weight exp(share · ln K − entropy) (EATA, Niu et al., ICML 2022, eq. 3); None: all count alike (Tent, Wang et
        al., ICLR 2021).
        """
        scale_F, bias_F = (torch.tensor(one, requires_grad=True) for one in scales)
        fed = dict(zip(INPUTS, (*map(torch.from_numpy, source), torch.tensor(share, dtype=torch.float32)), strict=True))
        with torch.enable_grad(), _in_threads(self._threads):
            values = self._run({self._taken: torch.from_numpy(x_BCHW), **fed}, scale_F, bias_F)
            log_p_BK = values[self._given].log_softmax(1)
            entropy_B = -(log_p_BK.exp() * log_p_BK).sum(1)
            weight_B = torch.ones_like(entropy_B)
            if sure_share is not None:
                most = sure_share * math.log(log_p_BK.shape[1])
                weight_B = torch.exp(most - entropy_B.detach()) * (entropy_B.detach() < most)
            by_scale_F, by_bias_F = torch.autograd.grad((weight_B * entropy_B).sum(), (scale_F, bias_F))
        means_BF, variances_BF = (values[name].detach().numpy() for name in OUTPUTS)
        return EntropyGradients(
            NormStatistics.of_images(means_BF, variances_BF),
            by_scale_F.numpy(),
            by_bias_F.numpy(),
            int((weight_B > 0).sum()),
        )

    def _run(self, fed: Values, scale_F: torch.Tensor, bias_F: torch.Tensor) -> Values:
        """All values of a run by name."""
        values = {**self._constants, **fed}
        for step in self._steps:
            if step.own is None:
                values.update(self._computed(step, values))
            else:
                x, mean_C, variance_C = (values[step.inputs[at]] for at in (0, 3, 4))
                scale_C = scale_F[step.own] * (variance_C + step.attributes.get("epsilon", EPSILON)).rsqrt()
                shape = (1, -1, *(1,) * (x.dim() - 2))
                shift_C = bias_F[step.own] - mean_C * scale_C
                values[step.outputs[0]] = x * scale_C.view(shape) + shift_C.view(shape)
        return values

    def _becomes_constant(self, step: _Step) -> bool:
        """Precompute a node that does not depend on images. False: it depends on them. AdaptiveError: unknown operator."""
        if step.own is not None:
            return False
        self._compute_of(step)
        if not all(name in self._constants for name in step.inputs if name):
            return False
        self._constants.update(self._computed(step, self._constants))
        return True

    def _computed(self, step: _Step, values: Values) -> Values:
        compute = self._compute_of(step)
        try:
            found = compute([values[name] if name else None for name in step.inputs], step.attributes)
        except NotImplementedError as error:
            raise self._unknown(f"operator '{step.op}' at '{step.node}' with {error}") from error
        return dict(zip(step.outputs, found if isinstance(found, tuple) else (found,), strict=True))

    def _compute_of(self, step: _Step) -> Compute:
        if step.op not in OPERATORS:
            raise self._unknown(f"operator '{step.op}' at '{step.node}'")
        return OPERATORS[step.op]

    def _unknown(self, what: str) -> AdaptiveError:
        next_step = "adapt by 'statistics'"
        return AdaptiveError(self._where, f"{what} has no gradients here", next_step=next_step)


def _step(node: onnx.NodeProto, own: slice | None) -> _Step:
    attributes = {one.name: _value(helper.get_attribute_value(one)) for one in node.attribute}
    return _Step(node.name, node.op_type, tuple(node.input), tuple(node.output), attributes, own)


def _value(attribute: Any) -> Any:
    """An attribute as a Python value or numpy array."""
    if isinstance(attribute, onnx.TensorProto):
        return numpy_helper.to_array(attribute)
    return attribute.decode() if isinstance(attribute, bytes) else attribute


@contextmanager
def _in_threads(threads: int) -> Iterator[None]:
    """Set torch's number of threads while the context is open; afterwards other users in this process have theirs again."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
