"""The child that lowers programs: `python -m tasks.evaluation.executorch.lowering SECONDS FILE.pt2 …` in the files' folder.

It writes FILE.pte, or the reason of a failure in FILE.txt. A program that takes longer than SECONDS ends the process (SIGALRM).
Programs use the caller's memory for inputs, so that a run copies none.
"""

import signal
import sys
from pathlib import Path

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.passes import MemoryPlanningPass

from tasks.base.artifacts.files import write_bytes
from tasks.base.errors import shortened


def lowered(program: Path) -> bytes:
    """The lowered program: XNNPACK runs everything that it supports."""
    edge = to_edge_transform_and_lower(
        torch.export.load(program),
        partitioner=[XnnpackPartitioner()],
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    )
    planning = MemoryPlanningPass(alloc_graph_input=False)
    return bytes(edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning)).buffer)


def main(seconds: str, *names: str) -> None:
    """Lower one program after the other."""
    torch.set_num_threads(1)
    for program in map(Path, names):
        signal.setitimer(signal.ITIMER_REAL, float(seconds))
        try:
            write_bytes(program.with_suffix(".pte"), lowered(program))
        except Exception as error:  # noqa: BLE001 - of many kinds, none of them ours
            write_bytes(program.with_suffix(".txt"), shortened(error).encode())
    signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
