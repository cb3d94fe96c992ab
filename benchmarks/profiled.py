"""Devices that benchmarks measure on, and SuperNets that were profiled there."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.bars import Terminal
from benchmarks.supernets import saved
from profiling_agents.client import AgentClient, local_agent
from tasks import profile
from tasks.artifacts import read_json, write_json

DEVICES: dict[str, tuple[str, str]] = {  # runtime, precision
    "ncnn": ("ncnn", "fp32"),
    "ncnn_bf16": ("ncnn", "bf16"),
    "onnxruntime": ("onnxruntime", "fp32"),
    "openvino": ("openvino", "fp32"),
    "openvino_bf16": ("openvino", "bf16"),
    "executorch": ("executorch", "fp32"),
}


@contextmanager
def agent_of(device: str, threads: int = 1) -> Iterator[AgentClient]:
    """An agent on this machine for one of the devices."""
    backend, precision = DEVICES[device]
    with local_agent(backend, threads, options=("--precision", precision)) as client:
        yield client


def profiled(
    name: str, device: str, client: AgentClient, work: Path, method: str = "in situ"
) -> tuple[Path, dict[str, Any]]:
    """The folder of what profiling a network on a device wrote, and what it cost; what is there is not measured again.

    The networks of a device share their tables in `work`. The folder lies beside the SuperNet's.
    """
    folder = work / name
    supernet = saved(name, folder)
    own = folder / f"{device} {method}"
    own.mkdir(parents=True, exist_ok=True)
    cost_file = own / "cost.json"
    if not cost_file.exists():
        settings = profile.Settings.model_validate({"method": method, "store": work / "luts"})
        start = time.perf_counter()
        found = profile.run(settings, folder, client, own, Terminal(), supernet)
        write_json(cost_file, {"minutes": (time.perf_counter() - start) / 60, **found})
    return own, read_json(cost_file)
