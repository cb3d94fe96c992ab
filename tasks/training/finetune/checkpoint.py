"""Checkpoints: one .safetensors file with weights, buffers and optimiser state, and JSON in its header.

The file is written atomically, with a checksum of its tensors, so that training never resumes from a damaged one. Random
numbers need no state of their own: data order, augmentation, SubNets and dropout are all drawn from (seed, step).
"""

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import distributed, nn

from tasks.base.artifacts import set_aside, write_bytes
from tasks.base.progress import Progress

MODEL, OPTIMISER, AVERAGE, KEPT = "model.", "optimiser.", "average.", "kept."


class Judged(NamedTuple):
    """The state of a judge: JSON, and tensors by name."""

    state: Mapping[str, Any]
    kept: Mapping[str, torch.Tensor]


def model_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers by name; shared tensors appear once."""
    persistent = set(module.state_dict().keys())
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    return {name: tensor.detach() for name, tensor in tensors.items() if name in persistent}


def save(
    path: Path,
    module: nn.Module,
    optimiser: torch.optim.Optimizer,
    step: int,
    average: nn.Module | None = None,
    judged: Judged | None = None,
) -> None:
    """Write the state after `step` finished steps. average: the network with averaged weights. judged: the judge's state."""
    tensors = {MODEL + name: tensor for name, tensor in model_tensors(module).items()}
    if average is not None:
        tensors |= {AVERAGE + name: tensor for name, tensor in model_tensors(average).items()}
    for index, state in optimiser.state_dict()["state"].items():
        tensors |= {f"{OPTIMISER}{index}.{key}": value for key, value in state.items() if value is not None}
    if judged is not None:
        tensors |= {KEPT + name: tensor for name, tensor in judged.kept.items()}
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    state = {"step": step, "crc32": _checksum(stored), "judge": {} if judged is None else judged.state}
    save_file(stored, temporary, metadata={"state": json.dumps(state)})
    with temporary.open("rb") as stream:
        os.fsync(stream.fileno())
    temporary.replace(path)


def _checksum(tensors: Mapping[str, torch.Tensor]) -> int:
    """A checksum of names, types, shapes and values, in the order of names."""
    found = 0
    for name, tensor in sorted(tensors.items()):
        found = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), found)
        found = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, found)
    return found


def _is_whole(path: Path) -> bool:
    """Whether the file is readable and its checksum matches."""
    try:
        with safe_open(path, framework="pt") as file:
            state = json.loads(file.metadata()["state"])
            tensors = {name: file.get_tensor(name) for name in list(file.keys())}
            return bool(isinstance(state["step"], int) and state["crc32"] == _checksum(tensors))
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return False


def mend(path: Path, name: str, progress: Progress) -> None:
    """Quarantine a damaged checkpoint and report it; the training `name` then starts anew."""
    if path.exists() and not _is_whole(path):
        place = set_aside(path, path.parent)
        progress.say(f"{name}: the checkpoint is damaged: set aside as '{place}'; training starts from the beginning")


def finished_steps(path: Path) -> int:
    """The number of steps in the checkpoint at `path`; 0 if there is none."""
    if not path.exists():
        return 0
    with safe_open(path, framework="pt") as file:
        return int(json.loads(file.metadata()["state"])["step"])


def shared_steps(path: Path, *, first_of_node: bool) -> int:
    """The largest `finished_steps` of all nodes in a process group. Nodes with an older checkpoint, or none, receive the
    newest.
    """
    steps = [0] * distributed.get_world_size()
    distributed.all_gather_object(steps, finished_steps(path))
    newest, rank = max(steps), distributed.get_rank()
    if min(steps) < newest:
        source = steps.index(newest)
        content = [path.read_bytes() if rank == source else None]
        distributed.broadcast_object_list(content, source)
        if first_of_node and steps[rank] < newest:
            assert content[0] is not None
            write_bytes(path, content[0])
        distributed.barrier()
    return newest


def load_judged(path: Path) -> Judged:
    """Load the state of the judge."""
    with safe_open(path, framework="pt") as file:
        names = [name for name in list(file.keys()) if name.startswith(KEPT)]
        kept = {name.removeprefix(KEPT): file.get_tensor(name) for name in names}
        return Judged(json.loads(file.metadata()["state"])["judge"], kept)


@torch.no_grad()
def load_model(path: Path, module: nn.Module, *, average: bool = False) -> None:
    """Copy weights and buffers into `module`, in place. average: copy the averaged ones."""
    own = model_tensors(module)
    prefix = AVERAGE if average else MODEL
    with safe_open(path, framework="pt") as file:
        stored = {name.removeprefix(prefix) for name in list(file.keys()) if name.startswith(prefix)}
        assert stored == own.keys(), f"checkpoint and network differ in {sorted(stored ^ own.keys())[:5]}"
        for name, tensor in own.items():
            tensor.copy_(file.get_tensor(prefix + name))


@torch.no_grad()
def load_optimiser(path: Path, optimiser: torch.optim.Optimizer) -> None:
    """Restore the optimiser's moments."""
    state: dict[int, dict[str, torch.Tensor]] = {}
    with safe_open(path, framework="pt") as file:
        for name in list(file.keys()):
            if name.startswith(OPTIMISER):
                index, key = name.removeprefix(OPTIMISER).split(".", 1)
                state.setdefault(int(index), {})[key] = file.get_tensor(name)
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    for parameter, moments in optimiser.state.items():
        for key, value in moments.items():
            if (
                key != "step" and value.shape == parameter.shape
            ):  # fused steps require all moments to have the memory layout of the parameter
                moments[key] = torch.empty_like(parameter).copy_(value)
