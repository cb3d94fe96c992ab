"""What the chosen kernels bring on ncnn: the largest SubNet by them against ncnn's own choices, in one run.

    python -m benchmarks.kernels [--rounds 5] [--threads 1] [--device ncnn] [--exhaustive] [--work DIR]
                                 [--json FILE] [--markdown] [NETWORK[@PIXELS] …]

For each network (a preset, or a network of timm with the space that is proposed for it) the operators of its SuperNet are
profiled in situ, as `autotailor profile` does. Then the largest SubNet is timed in turn, `--rounds` times: as it is given,
by ncnn's own choices; without the positions of kernels that no input reaches ("trimmed"); and by the chosen kernels besides.
The ratio is the median over the rounds of the first over the last. Trials: timed
SubNets over SubNets that have all operators. Lost: share of the latency of checked operators that the rules' leaving out
would have cost. With `--exhaustive`, every convolution of the largest SubNet is run by every kernel, one layer at a time and
the others as chosen, and what is faster is kept: the network that comes out is the one to compare with. DIR keeps tables; a
second run takes operators from there.
"""

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

import numpy as np
import torch

import tailor_ir
from benchmarks.profiled import agent_of, profiled
from benchmarks.supernets import SUPERNET_FOLDER
from benchmarks.tables import show
from profiling_agents.client import AgentClient, ModelJob
from profiling_agents.messages import MeasureSettings
from tasks.base.schemas.placed import IMPLEMENTATIONS_FILE, ChosenImplementations
from tasks.evaluation.conversion import onnx_of
from tasks.evaluation.ncnn.conversion import convert
from tasks.evaluation.ncnn.files import MASKS, NcnnFiles, has_kernels, masks_of, with_masks
from tasks.measuring.jobs import ncnn_job
from tasks.measuring.subnets import implementations_of

NETWORKS = ("resnet18@32", "mobilenetv2", "mobilenetv3", "resnet50", "deit_tiny_patch16_224")
MEASURE = MeasureSettings(warmup_ms=20.0, min_blocks=5, time_cap_ms=200.0)
QUICK = MeasureSettings(warmup_ms=5.0, min_blocks=2, time_cap_ms=60.0)


class Row(TypedDict):
    """One network. Latencies are medians [ms]; `ratio`: as given over as chosen; `best`: chosen over exhaustive."""

    network: str
    operators: int
    profiling_min: float
    subnets: int
    trials: int
    lost: float | None
    given_ms: float
    own_ms: float
    chosen_ms: float
    ratio: float
    best: float | None


def measure(name: str, device: str, client: AgentClient, work: Path, rounds: int, *, exhaustive: bool) -> Row:
    """One row."""
    out, cost = profiled(name, device, client, work)
    net = tailor_ir.load(out.parent / SUPERNET_FOLDER)
    chosen = ChosenImplementations.read(out / IMPLEMENTATIONS_FILE)
    content = onnx_of(net, net.max_config)
    plain, given = convert(content), convert(content, trimmed=False)
    tuned = convert(content, implementations=implementations_of(net, net.max_config, chosen))
    files = {"given": given, "own": plain, "chosen": tuned}
    given_ms, own_ms, chosen_ms = _paired(client, [_job(key, content, each) for key, each in files.items()], rounds)
    best = None
    if exhaustive:
        found = _exhausted(client, content, plain, masks_of(tuned))
        first_ms, best_ms = _paired(client, [_job("chosen", content, tuned), _job("best", content, found)], rounds)
        best = float(np.median(first_ms / best_ms))
    study = cost["implementations"]
    return {
        "network": name,
        "operators": cost["known"] + cost["measured_now"],
        "profiling_min": cost["minutes"],
        "subnets": study["subnets"],
        "trials": study["trials"],
        "lost": study["lost"],
        "given_ms": float(np.median(given_ms)),
        "own_ms": float(np.median(own_ms)),
        "chosen_ms": float(np.median(chosen_ms)),
        "ratio": float(np.median(given_ms / chosen_ms)),
        "best": best,
    }


def _job(key: str, content: bytes, files: NcnnFiles) -> ModelJob:
    job = ncnn_job(key, content, files)
    return replace(job, files=job.files[:1])  # without weights, which change no time


def _paired(client: AgentClient, jobs: list[ModelJob], rounds: int) -> np.ndarray:
    """Latencies [ms] of jobs that run in turn (jobs, rounds)."""
    found = [[one.p50_ms or np.nan for one in client.measure(jobs, MEASURE)] for _ in range(rounds)]
    return np.array(found).T


def _exhausted(client: AgentClient, content: bytes, plain: NcnnFiles, masks: dict[str, int]) -> NcnnFiles:
    """The files with the best kernel of each convolution, found one layer after the other by timing whole networks.

    masks: those to begin with.
    """
    layers = [layer.name for layer in plain.layers() if has_kernels(layer)]
    for name in layers:
        trials = {mask: {**masks, name: mask} for mask in (0, *MASKS.values(), MASKS["direct"] - MASKS["sgemm"])}
        jobs = [_job(str(mask), content, with_masks(plain, _set(trial))) for mask, trial in trials.items()]
        times_ms = {int(one.key): one.p50_ms or np.inf for one in client.measure(jobs, QUICK)}
        masks[name] = min(times_ms, key=lambda mask: times_ms[mask])
    return with_masks(plain, _set(masks))


def _set(masks: dict[str, int]) -> dict[str, int]:
    return {name: mask for name, mask in masks.items() if mask}


HEADS = {
    "network": "network",
    "operators": "operators",
    "profiling_min": "profiling, min",
    "subnets": "SubNets",
    "trials": "trials",
    "lost": "lost",
    "given_ms": "as given, ms",
    "own_ms": "trimmed, ms",
    "chosen_ms": "chosen, ms",
    "ratio": "ratio",
    "best": "chosen / best",
}


def _values(row: Row) -> tuple[float | str | None, ...]:
    """In the order of `HEADS`."""
    return (
        row["network"],
        row["operators"],
        row["profiling_min"],
        row["subnets"],
        row["trials"],
        row["lost"],
        row["given_ms"],
        row["own_ms"],
        row["chosen_ms"],
        row["ratio"],
        row["best"],
    )


def _cell(name: str, value: float | str | None) -> str:
    if value is None:
        return "–"
    if name == "lost" and isinstance(value, float):
        return f"{value:.1%}"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _show(rows: list[Row], *, markdown: bool) -> None:
    cells = [[_cell(name, value) for name, value in zip(HEADS, _values(row), strict=True)] for row in rows]
    show(list(HEADS.values()), cells, markdown=markdown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", default=NETWORKS)
    parser.add_argument("--rounds", type=int, default=5, help="pairs of timings (5)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=("ncnn", "ncnn_bf16"), default="ncnn")
    parser.add_argument("--exhaustive", action="store_true", help="compare with the best mask of every layer")
    parser.add_argument("--work", type=Path, metavar="DIR", help="tables; a folder to go on from")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", action="store_true", help="print the table of the README")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        with agent_of(options.device, options.threads) as client, client.lease():
            for name in options.networks:
                found = measure(name, options.device, client, work, options.rounds, exhaustive=options.exhaustive)
                rows.append(found)
                _show(rows[-1:], markdown=False)
    _show(rows, markdown=options.markdown)
    print(f"geometric mean of the ratios: {float(np.exp(np.mean(np.log([row['ratio'] for row in rows])))):.2f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
