"""The device on which a rank computes."""

import torch

from tasks.base.errors import UserError
from tasks.training.finetune.settings import TrainSettings


def gpus(wanted: str) -> int:
    """The number of GPUs on which ranks compute; 0 if they compute on the CPU."""
    return 0 if pick_device(wanted).type == "cpu" else torch.cuda.device_count()


def fitting_processes(settings: TrainSettings, gpus: int) -> int:
    """The processes of this node: the wanted number, or, if there are fewer GPUs, the most that split the batch evenly."""
    wanted = settings.processes
    if not 0 < gpus < wanted or settings.nodes > 1:
        return wanted
    return next(count for count in range(gpus, 0, -1) if settings.batch_size % (settings.micro_batch * count) == 0)


def pick_device(wanted: str, local_rank: int = 0) -> torch.device:
    """The device of a rank; `auto` picks a GPU if one exists. Raises UserError when there are fewer GPUs than ranks."""
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise UserError("processes", f"{local_rank + 1} on cuda", allowed=f"at most {count}, the GPUs of this machine")
    return torch.device("cuda", local_rank)
