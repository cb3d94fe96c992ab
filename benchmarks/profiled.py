"""Devices that benchmarks measure on, and SuperNets that were profiled there."""

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.bars import Terminal
from benchmarks.supernets import saved
from profiling_agents.client import AgentClient, local_agent
from profiling_agents.messages import MeasureSettings
from tailor_ir import Config, SuperNet
from tasks.base.artifacts import read_json, write_json
from tasks.evaluation.conversion import onnx_of
from tasks.measuring import profile
from tasks.measuring.jobs import onnx_job
from tasks.prediction.settings import Settings as PredictSettings

DEVICES: dict[str, tuple[str, str]] = {  # runtime, precision
    "ncnn": ("ncnn", "fp32"),
    "ncnn_bf16": ("ncnn", "bf16"),
    "onnxruntime": ("onnxruntime", "fp32"),
    "openvino": ("openvino", "fp32"),
    "openvino_bf16": ("openvino", "bf16"),
    "executorch": ("executorch", "fp32"),
}
MEASURED_DEVICES = ("ncnn", "ncnn_bf16", "onnxruntime", "openvino")
ROUNDS, TIMING = 3, MeasureSettings(time_cap_ms=200.0)
"""Of `least_p50_ms`."""


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


def least_p50_ms(net: SuperNet, configs: Mapping[str, Config], file: Path) -> dict[str, float]:
    """The smallest p50 of rounds of each SubNet, by the key of its config, in onnxruntime on one thread [ms].

    file: keeps what was measured; what it has is not measured again.
    """
    if not file.exists():
        jobs = [onnx_job(key, onnx_of(net, config)) for key, config in configs.items()]
        found: dict[str, list[float]] = {key: [] for key in configs}
        with local_agent("onnxruntime") as client, client.lease():
            for _ in range(ROUNDS):
                for measured in client.measure(jobs, TIMING):
                    if measured.p50_ms is None:
                        raise RuntimeError(f"{measured.key}: {measured.reason}")
                    found[measured.key].append(measured.p50_ms)
        write_json(file, {key: min(times_ms) for key, times_ms in found.items()})
    known: dict[str, float] = read_json(file)
    return known


def add_options(parser: argparse.ArgumentParser, networks: Sequence[str], subnets: int) -> None:
    """What is measured where, and where the results go. networks, subnets: the defaults."""
    parser.add_argument("networks", nargs="*", metavar="NETWORK", default=networks)
    parser.add_argument("--devices", nargs="+", choices=DEVICES, default=MEASURED_DEVICES)
    parser.add_argument("--subnets", type=int, default=subnets, help=f"held out ({subnets})")
    parser.add_argument("--fit", type=int, default=16, help="random SubNets of the fit (16)")
    parser.add_argument("--rounds", type=int, default=3, help="times that each SubNet is measured at least (3)")
    parser.add_argument("--work", type=Path, metavar="DIR", help="what was measured; a folder to go on from")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", action="store_true", help="print the table of the README")


def predict_settings(options: argparse.Namespace) -> PredictSettings:
    """Of the options of `add_options`."""
    return PredictSettings(random_subnets=options.subnets + options.fit, fit_subnets=options.fit, rounds=options.rounds)


def each_network(options: argparse.Namespace) -> Iterator[tuple[str, str, AgentClient, Path]]:
    """Each network of the options on each device: both names, the device's agent, which is leased, and the work folder."""
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        for device in options.devices:
            with agent_of(device) as client, client.lease():
                for name in options.networks:
                    yield name, device, client, work
