"""One rank of a training, started by torchrun, or directly if it is the only rank.

    python -m tasks.training.finetune.worker JOB.json MEETING

The ranks of one machine find each other through a file in folder MEETING, the ranks of several machines through
torchrun; their signs of life are in the folder, too. Standard input is a pipe from the launcher; it closes when the
launcher is gone, and the rank then ends, too.
"""

import os
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import psutil
import torch
from torch import distributed

from tasks.base.artifacts import write_json
from tasks.base.errors import MAKE_ROOM, UserError, is_out_of_memory, shortage
from tasks.data import load_splits
from tasks.evaluation.subnets.images import pick_device
from tasks.training.finetune import checkpoint
from tasks.training.finetune.job import TORCHRUN, Job
from tasks.training.finetune.loop import Trainer
from tasks.training.finetune.networks import open_network
from tasks.training.finetune.ranks import Move, Pulse, of_ranks, unseen

LEAST_TIMEOUT_S, LATER_S = 600.0, 60.0
"""Time that a rank waits for the others: longer than it takes until a silent rank is killed."""
ORPHANED = 3
STAY = ("user", "memory")
"""Kinds of errors that would only recur after a restart."""


def _end_with_launcher() -> None:
    """End the rank when the launcher is gone, and torchrun, which would only restart it; other nodes would wait for it."""
    while os.read(sys.stdin.fileno(), 4096):
        continue
    with suppress(psutil.Error):
        parent = psutil.Process(os.getppid())
        if TORCHRUN in parent.cmdline():
            parent.kill()
    os._exit(ORPHANED)


def _store(job: Job, meeting: Path, rank: int, world: int, timeout: timedelta) -> distributed.Store:
    """The store through which ranks find each other: a file, or the address of the first rank."""
    if job.settings.nodes == 1:
        return distributed.FileStore(str(meeting / f"ranks{os.environ['TORCHELASTIC_RESTART_COUNT']}"), world)
    return of_ranks(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), rank, timeout)


def train(job: Job, meeting: Path, move: Move = unseen) -> None:
    """Join the group (through a file in folder `meeting` on a single machine), train, and leave it."""
    device = pick_device(job.settings.device, int(os.environ["LOCAL_RANK"]))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    timeout = timedelta(seconds=max(LEAST_TIMEOUT_S, job.settings.silence_end_s + LATER_S))
    distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=_store(job, meeting, rank, world, timeout),
        rank=rank,
        world_size=world,
        timeout=timeout,
    )
    try:
        splits = load_splits(job.data)
        dataset = splits["train"]
        done = checkpoint.shared_steps(job.checkpoint, first_of_node=int(os.environ["LOCAL_RANK"]) == 0)
        for phase in job.phases:
            if done < phase.last_step:
                network = open_network(job, phase, dataset)
                Trainer(job, network, dataset, device, move, phase, splits["validation"]).run()
                distributed.barrier()
    finally:
        distributed.destroy_process_group()


def attempt(job: Job, meeting: Path, move: Move, rank: int) -> None:
    """Train; a failing rank writes its error as one line beside the job file, and raises it."""
    job.error_file(rank).unlink(missing_ok=True)
    try:
        train(job, meeting, move)
    except (Exception, SystemExit) as error:  # includes errors of the user's network
        described = error
        if not isinstance(error, UserError) and not is_out_of_memory(error) and (what := shortage(error)):
            described = UserError(f"rank {rank}", what, next_step=MAKE_ROOM)
        line = str(described) if isinstance(described, UserError) else f"{type(error).__name__}: {error}"
        kind = "user" if isinstance(described, UserError) else "memory" if is_out_of_memory(error) else "other"
        write_json(job.error_file(rank), {"rank": rank, "time_s": time.time(), "line": line, "kind": kind})
        raise


def main() -> None:
    """Run the job of argv[1]."""
    threading.Thread(target=_end_with_launcher, daemon=True).start()
    meeting = Path(sys.argv[2])
    pulse = Pulse(meeting, int(os.environ["LOCAL_RANK"]))
    job = Job.model_validate_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
    if any(error["kind"] in STAY for error in job.errors()):
        sys.exit(1)
    try:
        attempt(job, meeting, pulse.move, int(os.environ["RANK"]))
    except SystemExit:
        sys.exit(1)


if __name__ == "__main__":
    main()
