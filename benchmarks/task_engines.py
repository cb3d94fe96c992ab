"""Dask beside Ray as the engine that hands batches to worker processes: what it takes to start, to send, and in memory.

    PYTHON benchmarks/task_engines.py dask|ray [--workers 2] [--tasks 400] [--kib 4]

PYTHON: an interpreter that has the engine and psutil (`python -m venv DIR && DIR/bin/pip install ray psutil`, or
`distributed cryptography psutil`); Ray is no part of the project. Each engine starts its worker processes on loopback, as it
comes, Dask with TLS. Then it takes tasks with a text of so many KiB that give it back, all at once and one after the other.
Memory: unique set size of all processes that were started, and what this process has more than before, after the tasks.
"""

import argparse
import importlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import psutil


def echoed(text: str) -> str:
    """The text."""
    return text


def dask_engine(workers: int) -> tuple[Callable[[str], Any], Callable[[Any], str], Callable[[], None]]:
    """What submits a text, what waits for it, and what ends the engine."""
    distributed = importlib.import_module("distributed")
    cluster = distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, host="127.0.0.1", security=True, memory_limit=0, dashboard_address=None
    )
    client = distributed.Client(cluster)

    def end() -> None:
        client.close()
        cluster.close()

    return lambda text: client.submit(echoed, text, pure=False), lambda future: str(future.result()), end


def ray_engine(workers: int) -> tuple[Callable[[str], Any], Callable[[Any], str], Callable[[], None]]:
    """The same of Ray, without its page and its reports of usage."""
    ray: Any = importlib.import_module("ray")
    ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    remote = ray.remote(num_cpus=1)(echoed)
    return remote.remote, lambda reference: str(ray.get(reference)), ray.shutdown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=("dask", "ray"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tasks", type=int, default=400)
    parser.add_argument("--kib", type=int, default=4)
    options = parser.parse_args()
    own, text = psutil.Process(), "x" * (1024 * options.kib)
    before_bytes, started = own.memory_full_info().uss, time.perf_counter()
    submit, wait, end = (dask_engine if options.engine == "dask" else ray_engine)(options.workers)
    for future in [submit(text) for _ in range(10 * options.workers)]:
        wait(future)
    ready_s, started = time.perf_counter() - started, time.perf_counter()
    for future in [submit(text) for _ in range(options.tasks)]:
        assert wait(future) == text
    at_once_s, singles_s = time.perf_counter() - started, []
    for _ in range(options.tasks // 4):
        started = time.perf_counter()
        assert wait(submit(text)) == text
        singles_s.append(time.perf_counter() - started)
    started_here = own.children(recursive=True)
    used_bytes = own.memory_full_info().uss - before_bytes
    used_bytes += sum(process.memory_full_info().uss for process in started_here)
    used_s = [one.cpu_times() for one in (own, *started_here)]
    end()
    print(
        f"{options.engine}: ready {ready_s:.1f} s; {1000 * at_once_s / options.tasks:.2f} ms a task of {options.tasks} at once"
    )
    print(f"one after the other {1000 * statistics.median(singles_s):.1f} ms (median)")
    print(f"{len(started_here)} processes more, {used_bytes / 2**20:.0f} MiB")
    print(f"processor time of all {sum(one.user + one.system for one in used_s):.1f} s")


if __name__ == "__main__":
    main()
