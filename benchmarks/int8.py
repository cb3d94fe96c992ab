"""What int8 costs and brings: accuracy, latency and bytes beside fp32, and the accuracy of SubNets predicted and measured.

    python -m benchmarks.int8 [--networks resnet26 mobilenetv2] [--subnets 30] [--work DIR] [--json FILE] [OVERRIDE …]

Networks learn ten characters of glyphs as `autotailor finetune` does it; OVERRIDEs go there. The largest SubNet of each is
quantised as the export does it (validation split: at most one point lost, else layers stay in fp32). Its files run in
onnxruntime and OpenVINO on one thread: accuracies are those of the runtime on the test split, latencies the smallest p50 of
--rounds rounds in which fp32 and int8 take turns. The same networks in their published size (224 pixels, random weights) are
timed, too.

Predicted: in int8 the largest SubNet and each with one variable changed are evaluated, and their sensitivities added up, as in
fp32. Beside it: predicted and measured accuracies in fp32, less what int8 costs the largest SubNet. Every layer is in int8.
Measured: random SubNets in int8; all on the validation split. DIR keeps everything; a second run goes on from there.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from rich.console import Console
from rich.table import Table

import tailor_ir
from benchmarks.bars import Terminal
from benchmarks.ranking import random_subnets
from benchmarks.trained import SMALL_GLYPHS, train
from profiling_agents.client import AgentClient, local_agent
from profiling_agents.messages import MeasureSettings
from tasks.data import load_splits
from tasks.evaluation.conversion import onnx_of
from tasks.evaluation.quantise import Int8, Settings, quantise
from tasks.evaluation.quantise.accuracy import BATCH
from tasks.evaluation.quantise.qdq import int8_to_time
from tasks.evaluation.subnets import Accuracy, EvaluationData, accuracies, count_correct, statistics_of
from tasks.evaluation.uncertainty import errors_in_points, kendall_tau
from tasks.measuring.jobs import onnx_job
from tasks.prediction.accuracy import AccuracyPredictor, modifications, sensitivities

COMMON = (
    *SMALL_GLYPHS,
    "finetune.processes=1",
    "space.resolution=[20,24,28,32]",
    "space.width_mult=auto",
    "space.depth=auto",
    "space.expand_ratio=auto",
    "model=timm",
)
NETWORKS: dict[str, tuple[str, ...]] = {
    "resnet26": (
        "model.name=resnet26",
        "model.options={channels:[32,64,128,256]}",
        "base.epochs=5",
        "base.learning_rate=0.002",
        "finetune.learning_rate=0.002",
        "finetune.epochs=4",
    ),
    "mobilenetv2": (
        "model.name=mobilenetv2_050",
        "model.options={output_stride:8}",
        "base.optimiser=sgd",
        "base.learning_rate=0.1",
        "base.weight_decay=0",
        "finetune.optimiser=sgd",
        "finetune.learning_rate=0.05",
        "finetune.weight_decay=0",
        "base.epochs=14",
        "finetune.epochs=5",
    ),
}
PUBLISHED = {"resnet26": "resnet26", "mobilenetv2": "mobilenetv2_100"}
PIXELS = 224
RUNTIMES = ("onnxruntime", "openvino")
TIMING = MeasureSettings(time_cap_ms=400.0)
SEED = 1


def timed_ms(client: AgentClient, files: dict[str, bytes], rounds: int) -> dict[str, float]:
    """The smallest p50 of each file [ms]."""
    jobs = [onnx_job(name, content) for name, content in files.items()]
    found: dict[str, list[float]] = {name: [] for name in files}
    for _ in range(rounds):
        for one in client.measure(jobs, TIMING):
            if one.p50_ms is None:
                raise RuntimeError(f"{one.key}: {one.reason}")
            found[one.key].append(one.p50_ms)
    return {name: min(times_ms) for name, times_ms in found.items()}


def accuracy_on(client: AgentClient, model: bytes, images: EvaluationData, size: tuple[int, int]) -> float:
    """Accuracy as the runtime computes it. model: for `BATCH` images."""
    job = onnx_job("accuracy", model)

    def forward(x_BCHW: torch.Tensor) -> torch.Tensor:
        pixels = x_BCHW.numpy()
        full = np.concatenate([pixels, np.zeros((-len(pixels) % BATCH, *pixels.shape[1:]), np.float32)])
        parts = [client.run(job, [full[first : first + BATCH]])[0] for first in range(0, len(full), BATCH)]
        return torch.from_numpy(np.concatenate(parts)[: len(pixels)])

    return count_correct(forward, images.batches(size)).share


def trained_rows(name: str, net: Any, data: dict[str, EvaluationData], rounds: int) -> list[dict[str, Any]]:
    """A row for each runtime: the largest SubNet in fp32 and in int8."""
    config = net.max_config
    height, width = net.input_shape(config)[-2:]
    statistics = statistics_of(net, config, data["validation"])
    one, many = (onnx_of(net, config, statistics, batch) for batch in (1, BATCH))
    single, batched = (quantise(net, config, statistics, model, Settings(), data, Terminal()) for model in (one, many))
    rows = []
    for runtime in RUNTIMES:
        with local_agent(runtime) as client, client.lease():
            times_ms = timed_ms(client, {"fp32": one, "int8": single.content}, rounds)
            shares = [accuracy_on(client, model, data["test"], (height, width)) for model in (many, batched.content)]
        rows.append(
            _row(name, runtime, times_ms, one, single.content)
            | {"accuracy": shares[0], "int8_accuracy": shares[1], "kept": f"{len(single.kept)} of {len(single.layers)}"}
        )
    return rows


def published_rows(name: str, rounds: int) -> list[dict[str, Any]]:
    """A row for each runtime: latency and bytes of the network in its published size."""
    torch.manual_seed(0)
    net = tailor_ir.compile(timm.create_model(PUBLISHED[name]).eval(), torch.zeros(1, 3, PIXELS, PIXELS))
    model = onnx_of(net, net.max_config)
    int8 = int8_to_time(model)
    rows = []
    for runtime in RUNTIMES:
        with local_agent(runtime) as client, client.lease():
            times_ms = timed_ms(client, {"fp32": model, "int8": int8}, rounds)
        rows.append(_row(f"{name}, {PIXELS} pixels", runtime, times_ms, model, int8))
    return rows


def _row(name: str, runtime: str, times_ms: dict[str, float], model: bytes, int8: bytes) -> dict[str, Any]:
    return {
        "network": name,
        "runtime": runtime,
        "fp32_ms": times_ms["fp32"],
        "int8_ms": times_ms["int8"],
        "fp32_bytes": len(model),
        "int8_bytes": len(int8),
    }


def predicted_rows(name: str, net: Any, images: EvaluationData, subnets: int, work: Path) -> list[dict[str, Any]]:
    """A row for each prediction of the accuracy in int8."""

    def in_int8(configs: Sequence[Any], title: str) -> list[Accuracy]:
        quantised = images.in_precision(Int8(Settings()))
        return accuracies(net, configs, quantised, work / "int8.jsonl", Terminal(), title)

    def in_fp32(configs: Sequence[Any], title: str) -> list[Accuracy]:
        return accuracies(net, configs, images, work / "fp32.jsonl", Terminal(), title)

    configs = random_subnets(net, subnets, SEED)
    measured, exact = in_int8(configs, "SubNets in int8"), in_fp32(configs, "SubNets in fp32")
    lost_points = np.array([100 * (a.share - b.share) for a, b in zip(exact, measured, strict=True)])
    codes = net.space.encode(configs)
    of_int8, of_fp32 = (_predictor(net, evaluate) for evaluate in (in_int8, in_fp32))
    lost = of_fp32.table.largest.accuracy - of_int8.table.largest.accuracy
    truth, fp32_truth = (np.array([found.share for found in some]) for some in (measured, exact))
    rows = []
    for kind, predicted, score in (
        ("sensitivities in int8", of_int8.predict(codes), of_int8.score(codes)),
        ("sensitivities in fp32, less the largest's loss", of_fp32.predict(codes) - lost, of_fp32.score(codes)),
        ("measured in fp32, less the largest's loss", fp32_truth - lost, fp32_truth),
    ):
        errors = {**errors_in_points(predicted, truth), "kendall_tau": kendall_tau(score, truth)}
        rows.append({"network": name, "predicted by": kind, "subnets": len(configs), **errors})
    errors = {
        **errors_in_points(of_fp32.predict(codes), fp32_truth),
        "kendall_tau": kendall_tau(of_fp32.score(codes), fp32_truth),
    }
    rows.append(
        {"network": name, "predicted by": "fp32 accuracy by sensitivities in fp32", "subnets": len(configs), **errors}
    )
    for row in rows:
        row |= {"mean_lost_points": float(lost_points.mean()), "most_lost_points": float(lost_points.max())}
    return rows


def _predictor(net: Any, evaluate: Callable[[Sequence[Any], str], list[Accuracy]]) -> AccuracyPredictor:
    return AccuracyPredictor(sensitivities(net.space, evaluate(modifications(net.space), "sensitivities")))


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """All rows of one network."""
    work = options.work / name
    trained = train([*COMMON, *NETWORKS[name], *options.overrides], work)
    net, splits = tailor_ir.load(trained.supernet), load_splits(trained.data)
    recalibration_images = trained.predict.recalibration_images
    validation = EvaluationData(splits["validation"], splits["train"], recalibration_images=recalibration_images)
    data = {"validation": validation, "test": validation.of(splits["test"])}
    return {
        "files": [*trained_rows(name, net, data, options.rounds), *published_rows(name, options.rounds)],
        "predicted": predicted_rows(name, net, validation, options.subnets, work),
    }


def _show(found: Sequence[dict[str, Any]]) -> None:
    files = Table(
        "network", "runtime", "fp32, ms", "int8, ms", "speed-up", "fp32, MB", "int8, MB", "accuracy", "in int8",
        "points lost", "layers in fp32",
    )  # fmt: skip
    predicted = Table(
        "network",
        "predicted by",
        "SubNets",
        "mean error, points",
        "largest",
        "tau",
        "mean loss by int8",
        "largest loss",
    )
    for of_network in found:
        for row in of_network["files"]:
            shares = row.get("accuracy"), row.get("int8_accuracy")
            judged = ["–"] * 4
            if shares[0] is not None and shares[1] is not None:
                judged = [f"{shares[0]:.2%}", f"{shares[1]:.2%}", f"{100 * (shares[0] - shares[1]):.2f}", row["kept"]]
            files.add_row(
                row["network"],
                row["runtime"],
                f"{row['fp32_ms']:.3f}",
                f"{row['int8_ms']:.3f}",
                f"{row['fp32_ms'] / row['int8_ms']:.2f}",
                f"{row['fp32_bytes'] / 1e6:.2f}",
                f"{row['int8_bytes'] / 1e6:.2f}",
                *judged,
            )
        for row in of_network["predicted"]:
            predicted.add_row(
                row["network"],
                row["predicted by"],
                str(row["subnets"]),
                f"{row['mean_error_points']:.2f}",
                f"{row['max_error_points']:.2f}",
                "–" if row["kendall_tau"] is None else f"{row['kendall_tau']:.3f}",
                f"{row['mean_lost_points']:.2f}",
                f"{row['most_lost_points']:.2f}",
            )
    console = Console(width=180)
    console.print(files)
    console.print(predicted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="of the training, such as finetune.epochs=8")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--subnets", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5, help="of timing (5)")
    parser.add_argument("--work", type=Path, metavar="DIR", help="networks and evaluations; a folder to go on from")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        options.work = options.work or Path(folder)
        options.work.mkdir(parents=True, exist_ok=True)
        found = [measure(name, options) for name in options.networks]
    _show(found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
