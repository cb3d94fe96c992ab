"""The base training, and the end of each script: the front of each device, and whether files keep their budgets."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

import autotailor

STARTED = time.monotonic()


def fit(
    model: nn.Module,
    loader: DataLoader[Any],
    loss: Callable[..., torch.Tensor],
    *,
    epochs: int,
    inputs: Sequence[str] = (),
    others: Iterable[nn.Parameter] = (),
) -> nn.Module:
    """A network that is trained before AutoTailor sees it. inputs: keys of samples that are dictionaries."""
    torch.manual_seed(0)
    optimiser = torch.optim.AdamW([*model.parameters(), *others], 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * len(loader))
    for _ in range(epochs):
        for batch in loader:
            given = [batch[name] for name in inputs] if inputs else batch[:-1]
            target = next(one for name, one in batch.items() if name not in inputs) if inputs else batch[-1]
            optimiser.zero_grad()
            loss(model(*given), target).backward()
            optimiser.step()
            schedule.step()
    return model.eval()


def show(found: autotailor.Tailored) -> None:
    """Print each device's front, its score and speed-up, whether each file keeps its budget, and the minutes of the script."""
    for device in found.devices:
        table = found.front(device)
        kept = table.measured_ms <= table.budget_ms
        print(device, table.assign(keeps=kept).drop(columns="file").to_string(index=False), sep="\n")
        print(f"{kept.sum()} of {len(kept)} files keep their budgets")
    minutes = (time.monotonic() - STARTED) / 60
    print(*found.headline, f"{minutes:.1f} minutes", f"report: {found.report}", sep="\n")
