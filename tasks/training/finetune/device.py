"""The GPUs of this node, and how many processes they fit."""

import torch

from tasks.base.device import pick_device
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
