"""What running a SubNet as a chain costs beside the time of its segments, and whether ncnn computes anything twice.

    python -m benchmarks.exit_chains [--networks resnet18 mobilenetv2_100] [--side 64] [--json FILE]

Untrained timm networks for 10 classes with the proposed exits, one image, one thread, medians over rounds. *Chain*:
`ExitChain.infer` with thresholds that nothing reaches, so that it asks at every exit and never leaves. *Segments*: the calls of
the runtime in those runs. *Overhead*: what else a run takes, for each exit. *Whole*: the network as one file, in turn with the
chain.

*Again*: ncnn's later answers are extracted from the same extractor, with light mode (blobs are freed when they are read) and
without: the time of extracting all answers over that of extracting the last one alone from a fresh one. What heads compute is
in it; whether a part of the network is computed twice would be seen at once.

Bar: at most 20 microseconds of overhead an exit.
"""

import argparse
import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import ncnn
import numpy as np
import onnx
import onnxruntime
import timm
import torch
from rich.console import Console
from rich.table import Table

import tailor_ir
from adaptive_runtime.bundle.chains import (
    SEGMENTS_FILE,
    ChainFormat,
    ChainManifest,
    ChainSegment,
    ChainTensor,
    ExitChain,
    NcnnChain,
    OnnxChain,
)
from adaptive_runtime.bundle.chains.chain import BoundRun
from tasks.evaluation.ncnn.conversion import convert

ROUNDS, WARM_UP = 200, 20
BAR_US = 20.0
SETTINGS: dict[ChainFormat, dict[str, bool | int | str]] = {
    "onnx": {"intra_op_num_threads": 1},
    "ncnn": {
        "num_threads": 1,
        "use_vulkan_compute": False,
        "blob_allocator": "UnlockedPoolAllocator",
        "workspace_allocator": "PoolAllocator",
    },
}


def in_turn(runs: Sequence[Callable[[], object]]) -> list[float]:
    """Median duration of each [us], all of them once in each round."""
    durations: list[list[float]] = [[] for _ in runs]
    for _ in range(ROUNDS + WARM_UP):
        for run, own in zip(runs, durations, strict=True):
            start = time.perf_counter_ns()
            run()
            own.append((time.perf_counter_ns() - start) / 1e3)
    return [median(own[WARM_UP:]) for own in durations]


def write_chain(net: tailor_ir.SuperNet, form: ChainFormat, folder: Path) -> ChainManifest:
    """The chain of the whole network and its manifest in a folder."""
    segments = net.segments(net.max_config)
    if form == "onnx":
        net.export_segments(net.max_config, folder, fold_batch_norm=True)
    else:
        net.export_answers(net.max_config, folder / "answers.onnx", fold_batch_norm=True)
        files = convert((folder / "answers.onnx").read_bytes())
        (folder / "answers.onnx").unlink()
        (folder / "segments.param").write_bytes(files.param)
        (folder / "segments.bin").write_bytes(files.bin)
    rows = []
    for at, segment in enumerate(segments):
        if form == "onnx":
            graph = onnx.load(folder / f"{at}.onnx").graph
            read, given = ([tensor(value) for value in values] for values in (graph.input, graph.output))
        else:
            shape = net.input_shape(net.max_config)
            read = [] if at else [ChainTensor(name="in0", shape=shape)]
            given = [ChainTensor(name=f"out{at}", shape=(1, None))]
        file = f"{at}.onnx" if form == "onnx" else None
        rows.append(ChainSegment(exit=segment.exit, file=file, inputs=read, outputs=given, macs=segment.macs))
    manifest = ChainManifest(
        format=form,
        digest=net.space.digest(net.max_config),
        files={file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()},
        input=rows[0].inputs[0],
        segments=rows,
        runtime={"onnx": "onnxruntime", "ncnn": "ncnn"}[form],
        settings=SETTINGS[form],
    )
    (folder / SEGMENTS_FILE).write_text(manifest.to_json())
    return manifest


def tensor(value: onnx.ValueInfoProto) -> ChainTensor:
    """An input or output of an ONNX model."""
    return ChainTensor(name=value.name, shape=tuple(one.dim_value for one in value.type.tensor_type.shape.dim))


class Stopwatch:
    """Durations of calls [us], of a run at a time."""

    def __init__(self) -> None:
        self.runs: list[list[float]] = []

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, whose durations count."""

        def run(*operands: Any) -> Any:
            start = time.perf_counter_ns()
            found = call(*operands)
            self.runs[-1].append((time.perf_counter_ns() - start) / 1e3)
            return found

        return run


@dataclass(frozen=True, slots=True)
class TimedNet:
    """A net of ncnn whose extractions are timed."""

    net: Any
    watch: Stopwatch

    def create_extractor(self) -> SimpleNamespace:
        """An extractor with the calls that a chain makes."""
        own = self.net.create_extractor()
        return SimpleNamespace(input=own.input, extract=self.watch.timed(own.extract))


def of_onnx(net: tailor_ir.SuperNet, folder: Path, x: np.ndarray) -> dict[str, Any]:
    """Times of a chain in onnxruntime."""
    write_chain(net, "onnx", folder)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    net.export(net.max_config, folder / "whole.onnx", fold_batch_norm=True)
    whole = onnxruntime.InferenceSession(folder / "whole.onnx", options, providers=["CPUExecutionProvider"])
    name, watch = whole.get_inputs()[0].name, Stopwatch()
    with ExitChain.open(folder) as chain:
        assert isinstance(chain.runtime, OnnxChain)
        start, steps = BoundRun.of(chain.runtime)
        chain.runtime.give_back(BoundRun(start, tuple((watch.timed(run), *bound) for run, *bound in steps)))
        return row("onnxruntime", chain, x, watch, lambda: whole.run(None, {name: x}))


def of_ncnn(net: tailor_ir.SuperNet, folder: Path, x: np.ndarray) -> dict[str, Any]:
    """Times of a chain in ncnn, and what extracting all answers takes more than extracting the last one."""
    names = [segment.outputs[0].name for segment in write_chain(net, "ncnn", folder).segments]
    given, watch = ncnn.Mat(x[0]).clone(), Stopwatch()
    with ExitChain.open(folder) as chain:
        assert isinstance(chain.runtime, NcnnChain)
        loaded = chain.runtime.net

        def extracted(wanted: Sequence[str], *, light: bool) -> Callable[[], object]:
            def run() -> None:
                extractor = loaded.create_extractor()
                extractor.set_light_mode(light)
                extractor.input("in0", given)
                for name in wanted:
                    extractor.extract(name)

            return run

        runs = [extracted(wanted, light=light) for light in (True, False) for wanted in (names, names[-1:])]
        light_all, light_last, kept_all, kept_last = in_turn(runs)
        again = {"again_light": light_all / light_last, "again_kept": kept_all / kept_last}
        chain.runtime.net = TimedNet(loaded, watch)
        found = {**row("ncnn", chain, x, watch, extracted(names[-1:], light=True)), **again}
        chain.runtime.net = loaded
        return found


def row(runtime: str, chain: ExitChain, x: np.ndarray, watch: Stopwatch, whole: Callable[[], object]) -> dict[str, Any]:
    """The figures of one chain."""
    totals: list[float] = []

    def run() -> None:
        watch.runs.append([])
        start = time.perf_counter_ns()
        chain.infer(x)
        totals.append((time.perf_counter_ns() - start) / 1e3)

    chained_us, whole_us = in_turn([run, whole])
    calls = np.array(watch.runs)[WARM_UP:]
    return {
        "runtime": runtime,
        "segments_us": np.median(calls, 0).tolist(),
        "chain_us": chained_us,
        "whole_us": whole_us,
        "overhead_us": float(np.median(np.array(totals)[WARM_UP:] - calls.sum(1))) / calls.shape[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["resnet18", "mobilenetv2_100"])
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    x = np.random.default_rng(0).standard_normal((1, 3, options.side, options.side), dtype=np.float32)
    rows = []
    for name in options.networks:
        torch.manual_seed(0)
        network = timm.create_model(name, num_classes=10).eval()
        net = tailor_ir.compile(network, torch.from_numpy(x), {"exits": "auto"})
        macs = sum(one.macs for one in net.segments(net.max_config)) / net.macs(net.max_config)
        for run in (of_onnx, of_ncnn):
            with tempfile.TemporaryDirectory() as folder:
                rows.append({"network": name, "macs_with_heads": macs, **run(net, Path(folder), x)})
    table = Table(
        "network", "runtime", "segments, ms", "sum", "chain", "overhead, µs an exit", "holds", "whole", "again"
    )
    for one in rows:
        table.add_row(
            f"{one['network']} ({one['macs_with_heads']:.2f})",
            one["runtime"],
            ", ".join(f"{own / 1e3:.3f}" for own in one["segments_us"]),
            f"{sum(one['segments_us']) / 1e3:.3f}",
            f"{one['chain_us'] / 1e3:.3f}",
            f"{one['overhead_us']:.1f}",
            "yes" if one["overhead_us"] <= BAR_US else "NO",
            f"{one['whole_us'] / 1e3:.3f}",
            f"{one['again_light']:.3f}, {one['again_kept']:.3f}" if "again_light" in one else "",
        )
    Console(width=150).print(table)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
