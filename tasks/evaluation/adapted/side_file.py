"""Side files: the tensors that a SubNet adapted, stored beside the SuperNet, never in its shared weights.

A side file is safetensors: the tensors that differ from the source's, and, as metadata, the digests of the SuperNet, of the
SubNet and of the source's tensors (BatchNorm statistics of the SubNet included). It fits that SubNet alone.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from safetensors import SafetensorError
from safetensors.torch import load, save

from adaptive_runtime.base.files import json_of
from tailor_ir import Config, InputAlignment, SuperNet
from tasks.base.artifacts.digests import DIGEST_LENGTH
from tasks.base.artifacts.files import write_bytes
from tasks.base.errors import UserError, shortened
from tasks.evaluation.adapted.subnet import AdaptiveSubnet

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
        self._check("supernet", "the SuperNet", _supernet_digest(net))

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


def _supernet_digest(net: SuperNet) -> str:
    return tensors_digest(net.elastic.tensors())


def save_adapted(path: str | Path, subnet: AdaptiveSubnet, net: SuperNet, config: Config) -> None:
    """Write the tensors that a SubNet adapted, atomically."""
    facts = SideFileFacts(
        supernet=_supernet_digest(net),
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
