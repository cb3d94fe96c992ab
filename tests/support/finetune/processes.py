"""Processes of trainings, seen from outside. Those that end while one looks are left out."""

from contextlib import suppress

import psutil

WORKER = "tasks.training.finetune.worker"


def trainings_below(process: psutil.Process) -> list[psutil.Process]:
    """torchrun and ranks among the descendants of `process`."""
    found = []
    for child in process.children(recursive=True):
        with suppress(psutil.Error):
            if WORKER in child.cmdline():
                found.append(child)
    return found


def ranks_of(process: psutil.Process) -> dict[int, psutil.Process]:
    """The ranks among the descendants of `process`, by number."""
    found: dict[int, psutil.Process] = {}
    for child in trainings_below(process):
        with suppress(psutil.Error):
            number = child.environ().get("RANK")
            if number is not None:  # torchrun is none
                found.setdefault(int(number), child)
    return found
