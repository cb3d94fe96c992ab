"""Side files: what a SubNet adapted, beside the SuperNet, never in its shared weights.

A side file is safetensors: the tensors that differ from the source's, and, as metadata, the digests of the SuperNet, of the
SubNet and of the source's tensors (BatchNorm statistics of the SubNet included). It fits that SubNet alone.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from tailor_ir import Config, SuperNet
from tasks.adaptation.alignment import PREFIX, InputAlignment
from tasks.adaptation.subnet import AdaptiveSubnet
from tasks.artifacts.digests import DIGEST_LENGTH
from tasks.artifacts.files import write_bytes
from tasks.errors import UserError, shortened

FORMAT = "1"


class SideFileFacts(BaseModel):
    """Metadata of a side file: digests of what it belongs to; `steps`: batches that its statistics come from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: str = FORMAT
    supernet: str
    subnet: str
    source: str
    steps: int


def tensors_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """sha256 (first 16 hex characters) of names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:DIGEST_LENGTH]


def _facts(subnet: AdaptiveSubnet, net: SuperNet, config: Config) -> SideFileFacts:
    return SideFileFacts(
        supernet=tensors_digest(net.elastic.tensors()),
        subnet=net.space.digest(config),
        source=tensors_digest(subnet.source),
        steps=subnet.rule.steps,
    )


def save_adapted(path: str | Path, subnet: AdaptiveSubnet, net: SuperNet, config: Config) -> None:
    """Write what a SubNet adapted, whole or not at all."""
    metadata = {name: str(value) for name, value in _facts(subnet, net, config).model_dump().items()}
    aligned = {} if subnet.alignment is None else subnet.alignment.tensors()
    write_bytes(Path(path), save(subnet.state() | aligned, metadata))


def load_adapted(path: str | Path, subnet: AdaptiveSubnet, net: SuperNet, config: Config) -> None:
    """Take what a SubNet adapted. UserError, and nothing is changed, for a file that is torn or not of this SubNet."""
    try:
        with safe_open(path, "pt") as content:
            told = SideFileFacts.model_validate(content.metadata() or {})
            state = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 - no mapping
    except (OSError, SafetensorError, ValidationError) as error:
        raise UserError(
            f"side file '{path}'", f"cannot be read ({shortened(error)})", next_step="adapt the SubNet again"
        ) from error
    _check(path, told, _facts(subnet, net, config))
    alignment = InputAlignment.of_tensors(state)
    if alignment is not None:
        state = {name: tensor for name, tensor in state.items() if not name.startswith(PREFIX)}
    unknown = [name for name, tensor in state.items() if _shape(subnet.source.get(name)) != _shape(tensor)]
    if unknown:
        raise UserError(
            f"side file '{path}'", f"no such tensor in the SubNet: {unknown[0]}", next_step="adapt it again"
        )
    subnet.restore(state)
    subnet.alignment, subnet.rule.steps = alignment, told.steps


def _shape(tensor: torch.Tensor | None) -> tuple[int, ...] | None:
    return None if tensor is None else tuple(tensor.shape)


def _check(path: str | Path, told: SideFileFacts, own: SideFileFacts) -> None:
    """UserError for another SuperNet, SubNet or source."""
    for part, title in (
        ("format", "format"),
        ("supernet", "the SuperNet"),
        ("subnet", "the SubNet"),
        ("source", "the SubNet with the BatchNorm statistics"),
    ):
        found, wanted = getattr(told, part), getattr(own, part)
        if found != wanted:
            raise UserError(
                f"side file '{path}'",
                f"it belongs to {title} {found}",
                allowed=wanted,
                next_step="load the side file of this SubNet, or none",
            )
