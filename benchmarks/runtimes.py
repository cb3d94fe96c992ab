"""Which runtime in which precision runs a network the fastest, each by what was chosen for it.

    python -m benchmarks.runtimes [--devices ncnn …] [--rounds 8] [--threads 1] [--work DIR] [--json FILE] [--markdown]
                                  [NETWORK[@PIXELS] …]

For each network (a preset, or a network of timm with the space that is proposed for it), runtime and precision: the largest
SubNet by the runtime's defaults, and by the engine that the stage "runtime_options" chooses; on ncnn with the kernels that
profiling chooses for each convolution, too. All take turns, the median of the rounds counts; speed-up: the median of the
ratios within the rounds. DIR keeps engines and tables, and shares them with `benchmarks.kernels` and `benchmarks.latency`.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np
import torch

import tailor_ir
from benchmarks.bars import Terminal
from benchmarks.profiled import DEVICES, agent_of, profiled
from benchmarks.supernets import saved
from benchmarks.tables import show
from profiling_agents.client import AgentClient, ModelJob
from profiling_agents.messages import MeasureSettings
from tasks.base.schemas.placed import IMPLEMENTATIONS_FILE, ChosenImplementations
from tasks.evaluation.conversion import onnx_of
from tasks.evaluation.ncnn.conversion import convert
from tasks.measuring.jobs import ncnn_job
from tasks.measuring.runtime_options import stage as engine
from tasks.measuring.runtime_options.settings import ChosenEngine, Settings
from tasks.measuring.subnets import LeasedDevice, implementations_of

NETWORKS = ("resnet18@32", "mobilenetv2", "mobilenetv3", "resnet50", "deit_tiny_patch16_224")
MEASURED_DEVICES = ("ncnn", "ncnn_bf16", "onnxruntime", "openvino", "openvino_bf16")
MEASURE = MeasureSettings(warmup_ms=20.0, min_blocks=5, time_cap_ms=200.0)


class Row(TypedDict):
    """One network on one device. Latencies: medians [ms]. `speed_up`: defaults over chosen; `times_best`: over the fastest."""

    network: str
    device: str
    version: str
    chosen: str
    default_ms: float
    chosen_ms: float
    speed_up: float
    times_best: float


@dataclass(frozen=True, slots=True)
class Contender:
    """The largest SubNet on one device: by the runtime's defaults, and as it was chosen (`text`)."""

    device: str
    version: str
    default: tuple[AgentClient, ModelJob]
    chosen: tuple[AgentClient, ModelJob]
    text: str

    def time_ms(self) -> tuple[float, float]:
        """One round [ms]: by the defaults, as chosen."""
        first, second = (_time_ms(*one) for one in (self.default, self.chosen))
        return first, second


def measure(network: str, devices: Sequence[str], threads: int, rounds: int, work: Path) -> list[Row]:
    """One row for each device."""
    with ExitStack() as stack:
        contenders = []
        for device in devices:
            client = stack.enter_context(agent_of(device, threads))
            with client.lease():
                contenders.append(_contender(network, device, client, work))
        with Terminal().bar("rounds", rounds) as bar:
            times_ms = np.empty((rounds, len(contenders), 2))
            for number in range(rounds):
                times_ms[number] = [one.time_ms() for one in contenders]
                bar.advance()
    default_ms, chosen_ms = np.median(times_ms, axis=0).T
    speed_ups = np.median(times_ms[:, :, 0] / times_ms[:, :, 1], axis=0)
    return [
        {
            "network": network,
            "device": one.device,
            "version": one.version,
            "chosen": one.text,
            "default_ms": float(default_ms[at]),
            "chosen_ms": float(chosen_ms[at]),
            "speed_up": float(speed_ups[at]),
            "times_best": float(chosen_ms[at] / chosen_ms.min()),
        }
        for at, one in enumerate(contenders)
    ]


def _contender(network: str, device: str, client: AgentClient, work: Path) -> Contender:
    supernet = saved(network, work / network)
    found = client.capabilities()
    out = work / network / f"{device} engine"
    out.mkdir(exist_ok=True)
    by_kernels = "ncnn" in found.formats
    settings = Settings()
    if not (out / engine.RUNTIME_OPTIONS_FILE).exists():
        board = LeasedDevice(name=device, client=client)
        engine.run(settings, supernet, board, out, Terminal(), by_operator=by_kernels)
    chosen = ChosenEngine.read(out / engine.RUNTIME_OPTIONS_FILE)
    net = tailor_ir.load(supernet)
    jobs, failed = engine.ModelsOfSubNets(net, settings, found).timed()
    assert not failed, failed
    default = tuned = next(iter(jobs.values()))
    text = chosen.text
    if by_kernels:
        folder, _ = profiled(network, device, client, work)
        kernels = ChosenImplementations.read(folder / IMPLEMENTATIONS_FILE)
        content = onnx_of(net, net.max_config)
        names = implementations_of(net, net.max_config, kernels)
        default = ncnn_job("default", content, convert(content, trimmed=False))
        tuned = ncnn_job("chosen", content, convert(content, implementations=names))
        text += f", kernels of {len(names)} layers"
    own = client.with_engine(chosen.engine)
    return Contender(device, found.version, (client, default), (own, tuned), text)


def _time_ms(client: AgentClient, job: ModelJob) -> float:
    with client.lease():
        (found,) = client.measure([job], MEASURE)
    assert found.p50_ms is not None, found.reason
    return found.p50_ms


HEADS = ("network", "runtime and precision", "chosen", "defaults, ms", "chosen, ms", "speed-up", "times the fastest")


def _show(rows: Sequence[Row], *, markdown: bool) -> None:
    cells = [
        (
            row["network"],
            f"{row['device']} {row['version']}",
            row["chosen"],
            f"{row['default_ms']:.3g}",
            f"{row['chosen_ms']:.3g}",
            f"{row['speed_up']:.2f}",
            f"{row['times_best']:.2f}",
        )
        for row in rows
    ]
    show(HEADS, cells, markdown=markdown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", default=NETWORKS)
    parser.add_argument("--devices", nargs="+", choices=DEVICES, default=MEASURED_DEVICES)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--work", type=Path, metavar="DIR", help="engines and tables; a folder to go on from")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", action="store_true", help="print the table of the README")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        for network in options.networks:
            found = measure(network, options.devices, options.threads, options.rounds, options.work or Path(temporary))
            _show(found, markdown=False)
            rows += found
    _show(rows, markdown=options.markdown)
    for device in options.devices:
        ratios = [row["speed_up"] for row in rows if row["device"] == device]
        print(f"{device}: geometric mean of the speed-ups {float(np.exp(np.mean(np.log(ratios)))):.2f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
