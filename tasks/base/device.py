"""The device on which torch computes."""

import torch

from tasks.base.errors import UserError


def pick_device(wanted: str, local_rank: int = 0) -> torch.device:
    """The device of a rank; `auto` picks a GPU if one exists. Raises UserError when there are fewer GPUs than ranks."""
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise UserError("processes", f"{local_rank + 1} on cuda", allowed=f"at most {count}, the GPUs of this machine")
    return torch.device("cuda", local_rank)
