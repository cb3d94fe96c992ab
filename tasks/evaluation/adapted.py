"""SubNets in adapted form: their own BatchNorm statistics and tensors, beside the shared weights, and in side files.

A SubNet that adapts has its own copy of the weights, and the way back to the source. A side file is stored beside the
SuperNet, never in its shared weights. It is safetensors: the tensors that differ from the source's, and, as metadata,
the digests of the SuperNet, of the SubNet and of the source's tensors (BatchNorm statistics of the SubNet included). It
fits that SubNet alone.

Legend: B batch, C channels, S the other axes of a layer's input.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn
from torch.nn import functional

from adaptive_runtime.base.files import json_of
from tailor_ir import Config, InputAlignment, Statistics, SuperNet
from tasks.base.artifacts.files import write_bytes
from tasks.base.artifacts.folders import DIGEST_LENGTH
from tasks.base.errors import UserError, shortened

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


@dataclass(slots=True)
class StatisticsRule:
    """The statistics by which all BatchNorm layers of a SubNet normalise.

    by_batch: normalise by the batch mixed with the source's statistics, and update the running statistics; else normalise by
    the running statistics. prior_images: number of images that the source's statistics weigh as much as; 0: the batch alone.
    newest_share: least share of each batch in the running statistics. The k-th batch has 1/k, so that the first batches count
    alike. steps: batches so far. keeps: whether batches update the running statistics.
    """

    by_batch: bool = False
    prior_images: float = 0.0
    newest_share: float = 0.1
    steps: int = 0
    keeps: bool = True

    @property
    def share(self) -> float:
        """Share of the next batch in the running statistics."""
        return max(self.newest_share, 1 / (self.steps + 1))


class AdaptiveBatchNorm(nn.Module):
    """BatchNorm of x (B, C, *S) under a `StatisticsRule`; its state has the names of torch's BatchNorm.

    Mixed statistics are N/(N+n) · source + n/(N+n) · batch for n images and a prior of N (Schneider et al., NeurIPS 2020, §2).
    The running statistics average mean and mean square over batches, so that batches of one image give the variance over all
    images.
    """

    running_mean: torch.Tensor
    running_var: torch.Tensor
    source_mean: torch.Tensor
    source_var: torch.Tensor

    def __init__(self, layer: BatchNorm, rule: StatisticsRule) -> None:
        super().__init__()
        assert layer.running_mean is not None
        assert layer.running_var is not None
        self.weight, self.bias, self.epsilon, self.rule = layer.weight, layer.bias, layer.eps, rule
        self.register_buffer("running_mean", layer.running_mean)
        self.register_buffer("running_var", layer.running_var)
        self.register_buffer("source_mean", layer.running_mean.clone(), persistent=False)
        self.register_buffer("source_var", layer.running_var.clone(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.rule.by_batch:
            return functional.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.epsilon
            )
        mean, variance = self._mixed(x)
        if self.rule.keeps:
            self._keep(mean.detach(), variance.detach())
        shape = (1, -1, *(1,) * (x.dim() - 2))
        scale = self.weight * (variance + self.epsilon).rsqrt()
        return x * scale.view(shape) + (self.bias - mean * scale).view(shape)

    def _mixed(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and variance (C,) of the batch, mixed with the source's."""
        axes = [axis for axis in range(x.dim()) if axis != 1]
        variance, mean = torch.var_mean(x, axes, correction=0)
        own = len(x) / (len(x) + self.rule.prior_images)
        return torch.lerp(self.source_mean, mean, own), torch.lerp(self.source_var, variance, own)

    def _keep(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        share = self.rule.share
        square = torch.lerp(self.running_var + self.running_mean.square(), variance + mean.square(), share)
        self.running_mean.lerp_(mean, share)
        self.running_var.copy_((square - self.running_mean.square()).clamp(min=0))


Norm = AdaptiveBatchNorm | nn.LayerNorm | nn.GroupNorm


def make_adaptive(network: nn.Module, rule: StatisticsRule) -> dict[str, Norm]:
    """Replace every BatchNorm by an `AdaptiveBatchNorm`; all normalisation layers with a scale by name, in order.
    UserError for a network without any.
    """
    for name, layer in list(network.named_modules()):
        if isinstance(layer, BatchNorm):
            parent, _, own = name.rpartition(".")
            setattr(network.get_submodule(parent), own, AdaptiveBatchNorm(layer, rule))
    norms: dict[str, Norm] = {
        name: layer
        for name, layer in network.named_modules()
        if isinstance(layer, AdaptiveBatchNorm)
        or (isinstance(layer, nn.LayerNorm | nn.GroupNorm) and layer.weight is not None)
    }
    if not norms:
        raise UserError(
            "adaptation",
            "the SubNet has no normalisation layer with a scale",
            allowed="networks with BatchNorm, LayerNorm or GroupNorm",
            next_step="answer with the SubNet as it is",
        )
    return norms


AdaptedState = dict[str, torch.Tensor]
"""Tensors of a SubNet that differ from the source's, by their names in `SuperNet.build(config).state_dict()`."""


class AdaptiveSubnet:
    """A stand-alone SubNet whose normalisation adapts. *Source*: the SubNet as it was built.

    network: made by `SuperNet.build`, in eval mode. Only this copy changes; the SuperNet's weights stay the same.
    """

    def __init__(self, network: nn.Module) -> None:
        self.rule = StatisticsRule()
        self.alignment: InputAlignment | None = None
        self.network = network
        self.norms = make_adaptive(network, self.rule)
        self.network.requires_grad_(False)
        self.source = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}

    @classmethod
    def of(cls, net: SuperNet, config: Config, statistics: Statistics | None = None) -> "AdaptiveSubnet":
        """A SubNet of a SuperNet, with its own BatchNorm statistics if they are given."""
        return cls(net.build(config, statistics))

    def __call__(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Logits (B, K) with the running statistics, after the method's alignment of images if it has one.
        Bit-equal to the built SubNet's logits in the source's state without alignment.
        """
        return self.network(x_BCHW if self.alignment is None else self.alignment(x_BCHW))

    @contextmanager
    def by_batch(self, prior_images: float, newest_share: float, *, keeps: bool = True) -> Iterator[None]:
        """Within the context, BatchNorm normalises by batches (`StatisticsRule`); with `keeps` it counts as one step."""
        rule = self.rule
        rule.by_batch, rule.keeps, rule.prior_images, rule.newest_share = True, keeps, prior_images, newest_share
        try:
            yield
        finally:
            rule.by_batch = False
            rule.steps += keeps

    def affine(self, share: float = 1.0) -> list[nn.Parameter]:
        """Scales and biases of the first `share` of the normalisation layers, with gradients from now on."""
        count = max(1, round(share * len(self.norms)))
        layers = list(self.norms.values())[:count]
        return self._with_gradients([p for layer in layers for p in layer.parameters(recurse=False)])

    def everything(self) -> list[nn.Parameter]:
        """All parameters, with gradients from now on."""
        return self._with_gradients(list(self.network.parameters()))

    @staticmethod
    def _with_gradients(parameters: list[nn.Parameter]) -> list[nn.Parameter]:
        for parameter in parameters:
            parameter.requires_grad_()
        return list(dict.fromkeys(parameters))

    @property
    def has_statistics(self) -> bool:
        """Whether the SubNet has BatchNorm."""
        return any(isinstance(layer, AdaptiveBatchNorm) for layer in self.norms.values())

    def state(self) -> AdaptedState:
        """Copies of the tensors that differ from the source's."""
        return {
            name: tensor.detach().clone()
            for name, tensor in self.network.state_dict().items()
            if not torch.equal(tensor, self.source[name])
        }

    @torch.no_grad()
    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Load a state; tensors that it lacks are the source's."""
        for name, tensor in self.network.state_dict().items():
            tensor.copy_(state.get(name, self.source[name]))

    def reset(self) -> None:
        """Go back to the source, bit by bit."""
        self.restore({})
        self.rule.steps = 0


FORMAT = "1"


class SideFileFacts(BaseModel):
    """Metadata of a side file: digests of SuperNet, SubNet and source; `steps`: batches that its statistics come from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: str = FORMAT
    supernet: str
    subnet: str
    source: str
    steps: int


@dataclass(frozen=True, slots=True)
class SideFile:
    """Content of a side file: its metadata, the tensors by their names in the SubNet's state, and how images are aligned.
    sha256: of the file.
    """

    path: Path
    sha256: str
    facts: SideFileFacts
    state: Mapping[str, torch.Tensor]
    alignment: InputAlignment | None

    @property
    def where(self) -> str:
        """The file's name in errors."""
        return f"side file '{self.path}'"

    def check_supernet(self, net: SuperNet) -> None:
        """Raise UserError if the side file belongs to another SuperNet or has another format."""
        self._check("format", "format", FORMAT)
        self._check("supernet", "the SuperNet", tensors_digest(net.elastic.tensors()))

    def give(self, subnet: AdaptiveSubnet, digest: str) -> None:
        """Restore the adapted state of a SubNet with this digest. UserError for a file of another SubNet, and no change."""
        self._check("subnet", "the SubNet", digest)
        self._check("source", "the SubNet with the BatchNorm statistics", tensors_digest(subnet.source))
        unknown = [name for name, tensor in self.state.items() if _shape(subnet.source.get(name)) != _shape(tensor)]
        if unknown:
            raise UserError(self.where, f"no such tensor in the SubNet: {unknown[0]}", next_step="adapt it again")
        subnet.restore(self.state)
        subnet.alignment, subnet.rule.steps = self.alignment, self.facts.steps

    def _check(self, part: str, title: str, wanted: str) -> None:
        if (found := getattr(self.facts, part)) != wanted:
            next_step = "load the side file of this SubNet, or none"
            raise UserError(self.where, f"it belongs to {title} {found}", allowed=wanted, next_step=next_step)


def tensors_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """sha256 (first 16 hex characters) of names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:DIGEST_LENGTH]


def save_adapted(path: str | Path, subnet: AdaptiveSubnet, net: SuperNet, config: Config) -> None:
    """Write the tensors that a SubNet adapted, atomically."""
    facts = SideFileFacts(
        supernet=tensors_digest(net.elastic.tensors()),
        subnet=net.space.digest(config),
        source=tensors_digest(subnet.source),
        steps=subnet.rule.steps,
    )
    metadata = {name: str(value) for name, value in facts.model_dump().items()}
    aligned = {} if subnet.alignment is None else subnet.alignment.tensors()
    write_bytes(Path(path), save(subnet.state() | aligned, metadata))


def read_side_file(path: str | Path) -> SideFile:
    """The side file at a path, whatever SubNet it belongs to. UserError: it cannot be read."""
    try:
        content = Path(path).read_bytes()
        state = load(content)
        facts = SideFileFacts.model_validate(_metadata(content))
    except (OSError, SafetensorError, ValueError) as error:
        raise UserError(
            f"side file '{path}'", f"cannot be read ({shortened(error)})", next_step="adapt the SubNet again"
        ) from error
    alignment = InputAlignment.of_tensors(state)
    if alignment is not None:
        state = {name: tensor for name, tensor in state.items() if name not in alignment.tensors()}
    return SideFile(Path(path), hashlib.sha256(content).hexdigest(), facts, state, alignment)


def _metadata(content: bytes) -> dict[str, Any]:
    """Metadata of a whole safetensors file: its first 8 bytes are the size of the JSON header behind them."""
    end = 8 + int.from_bytes(content[:8], "little")
    found: dict[str, Any] = json_of(content[8:end]).get("__metadata__", {})
    return found


def load_adapted(path: str | Path, subnet: AdaptiveSubnet, net: SuperNet, config: Config) -> None:
    """Load a SubNet's adapted tensors. UserError, and no change, if the file is torn or belongs to another SubNet."""
    file = read_side_file(path)
    file.check_supernet(net)
    file.give(subnet, net.space.digest(config))


def _shape(tensor: torch.Tensor | None) -> tuple[int, ...] | None:
    return None if tensor is None else tuple(tensor.shape)
