"""Checkpoints and the history of a training, and the better weights of a fine-tuned SuperNet.

A checkpoint is one .safetensors file with weights, buffers and optimiser state, and JSON in its header. It is written
atomically, with a checksum of its tensors, so that training never resumes from a damaged file. Random numbers need no
state of their own: data order, augmentation, SubNets and dropout are all drawn from (seed, step). The history has one
JSON line per step; ranks append to it, and the launcher follows it. The better weights are the weights after
fine-tuning, or the weights before it if it did harm.
"""

import json
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import distributed, nn

from tailor_ir import SuperNet
from tasks.base.artifacts import line_of, quarantine, read_lines, whole_lines, write_bytes
from tasks.base.progress import Progress
from tasks.base.schemas.results import BeforeTuning
from tasks.evaluation.subnets import EvaluationData
from tasks.evaluation.subnets.evaluations import Ends, ends_on
from tasks.evaluation.uncertainty import change


def rewind(history: Path, step: int) -> None:
    """Remove the lines that a killed run wrote after its last checkpoint."""
    kept = [line_of(line) for line in read_lines(history) if line["step"] <= step]
    write_bytes(history, "".join(kept).encode())


class Tail:
    """New steps of a history that restarted ranks may rewind meanwhile."""

    def __init__(self, path: Path, done: int) -> None:
        self._path = path
        self._file = -1
        self._offset = 0
        self._done = done

    def new(self) -> list[dict[str, Any]]:
        """Lines of new steps: those after `done` that no earlier call returned."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as stream:
            file = os.fstat(stream.fileno()).st_ino
            if file != self._file:  # rewinding writes another file
                self._file, self._offset = file, 0
            stream.seek(self._offset)
            whole = stream.read().rpartition(b"\n")[0]
        self._offset += len(whole) + 1 if whole else 0
        lines = whole_lines(whole)
        found = [line for line in lines if line["step"] > self._done]
        self._done = max([self._done, *(line["step"] for line in found)])
        return found


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
        place = quarantine(path, path.parent)
        progress.say(f"{name}: the checkpoint is damaged: quarantined as '{place}'; training starts from the beginning")


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


GENTLER = "a lower finetune.learning_rate, or finetune.teacher=base, changes it less"


class BeforeWeights:
    """The weights of a SuperNet before fine-tuning, and the accuracies of its ends with them."""

    def __init__(self, net: SuperNet, ends: Ends) -> None:
        self._net = net
        self._tensors = {name: tensor.clone() for name, tensor in model_tensors(net.elastic).items()}
        self._ends = ends

    @classmethod
    def of(cls, net: SuperNet, data: EvaluationData) -> Self:
        """The current weights and accuracies of a SuperNet."""
        return cls(net, ends_on(net, data))

    def better(self, after: Ends, say: Callable[[str], None]) -> tuple[Ends, BeforeTuning]:
        """Keep the better weights in the SuperNet; returns the accuracies of its ends with them, and a comparison to report.

        after: accuracies with the current weights. A message reports if these made the largest SubNet worse, beyond the
        standard error of the difference; the weights are then kept whose largest and smallest SubNets are better on average.
        """
        found = change(self._ends.largest, after.largest)
        kept = found.is_loss and self._ends.mean >= after.mean
        described = BeforeTuning(
            largest_validation_accuracy=self._ends.largest.share,
            change_points=100 * found.share,
            error_points=100 * found.error,
            kept=kept,
        )
        if described.is_worse:
            say(f"{described.line}; {GENTLER}")
        if not kept:
            return after, described
        with torch.no_grad():
            for name, tensor in model_tensors(self._net.elastic).items():
                tensor.copy_(self._tensors[name])
        return self._ends, described
