"""Weights that adapt on the device: times, errors beside torch, and how soon what was adapted wrongly is undone.

    python -m benchmarks.device_adaptation [--size 224] [--repeats 20] [--seeds 5] [--images 350] [--epochs 40] [--severity 5]
        [--corruptions contrast fog …] [--tent] [--markdown] [--json FILE]

Everything of the device runs in a process of its own that never imports torch; with --tent it does in the end.

*Times*: of MobileNetV2 at --size with random weights, one thread, medians of --repeats: to look at an image, 16 at once, which
is what collecting costs; to align one; a step by image, with --tent also one by gradients; and from statistics to a checked
session that serves, quiet and beside requests.

*Errors*: a small convolutional network that learnt digits, on streams of --images (`tasks.data.drift`) for each corruption and
seed: of the source; of the deployed model whose statistics alone follow them, and of the one that aligns them, too, with --tent
also by gradients; and of torch, which adapts to each batch of 16 by the method `batchnorm` with the same prior. *Differences*:
statistics and logits after ten steps to the same batches.

*Undone*: the model goes on with a side file whose statistics are wrong on purpose: too narrow, too wide, shuffled over
channels, or those of another stream. Counted are images until the source serves again; on drifted streams, which statistics
follow meanwhile, also until a verdict finds them right.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from torch import nn
from torch.nn import functional

import tailor_ir
from adaptive_runtime import WeightOptions
from benchmarks.tables import show
from tailor_ir import SuperNet
from tasks.adaptation import AdaptiveSubnet, MethodSettings, make_method
from tasks.data import Dataset, DataSettings, Split, load_splits
from tasks.data.drift import CORRUPTIONS, LabelledImages, stream
from tasks.data.settings import DriftSettings
from tasks.evaluation.subnets import EvaluationData, recalibrate_module
from tests.support.ir.networks import perturb
from tests.support.runtime.bundled import OBSERVED_IMAGES, SourceData, write_plain_bundle

MOST_MS, MOST_IMAGES, MOST_DIFFERENCE = 50.0, 200, 1e-4
SOURCE_IMAGES, CLASSES, STEPS = 128, 10, 10
OPTIONS = WeightOptions()
DATA = DataSettings(kind="noisy_digits", images=1797, validation_share=0.2, test_share=0.2, workers=1)
"""Each digit once, so that images of the splits, and of a stream, are different digits."""
BATCH = 64
ERRORS = ("source_points", "statistics_points", "device_points", "tent_points", "torch_points", "aligned_at", "kept_at")
METHOD = MethodSettings(method="batchnorm", prior_images=OPTIONS.prior_images, newest_share=OPTIONS.newest_share)


def large_job(folder: Path, size: int, repeats: int) -> dict[str, Any]:
    """MobileNetV2 with random weights, and what torch answers after one step."""
    torch.manual_seed(0)
    network = perturb(timm.create_model("mobilenetv2_100", num_classes=CLASSES))
    rng = np.random.default_rng(0)
    x_NCHW = rng.random((SOURCE_IMAGES, 3, size, size), np.float32)
    net = tailor_ir.compile(network, torch.zeros(1, 3, size, size))
    labels = rng.integers(CLASSES, size=SOURCE_IMAGES)
    write_plain_bundle(net, [net.max_config], folder / "large", source=SourceData(x_NCHW, labels))
    source = AdaptiveSubnet.of(net, net.max_config)
    x_BCHW = 0.5 * rng.random((OBSERVED_IMAGES, 3, size, size), np.float32)
    make_method(source, METHOD, []).adapt(torch.from_numpy(x_BCHW))
    with torch.no_grad():
        np.savez(folder / "large.npz", x=x_BCHW, logits=source(torch.from_numpy(x_BCHW)).numpy())
    return {"bundle": str(folder / "large"), "images": str(folder / "large.npz"), "repeats": repeats}


def learnt(epochs: int) -> tuple[SuperNet, dict[Split, Dataset]]:
    """A small convolutional network that has learnt digits, with statistics of the trained weights, and their splits.

    While weights change, running statistics lag behind them; so they are taken anew from training images in the end.
    """
    torch.manual_seed(0)
    splits = load_splits(DATA)

    def block(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())

    last = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES)]
    network = nn.Sequential(block(3, 16), block(16, 32), block(32, 64), *last)
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    steps = epochs * splits["train"].steps(BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for epoch in range(epochs):
        for x_BCHW, y_B in splits["train"].batches(BATCH, seed=0, epoch=epoch):
            optimiser.zero_grad()
            functional.cross_entropy(network(x_BCHW), y_B).backward()
            optimiser.step()
            schedule.step()
    size = (DATA.resolution, DATA.resolution)
    recalibrate_module(network, EvaluationData(splits["validation"], splits["train"]).calibration(size))
    return tailor_ir.compile(network, torch.zeros(1, DATA.channels, *size)), splits


def small_job(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The bundle of the network that has learnt, and streams as files."""
    net, splits = learnt(options.epochs)
    held_out, test = LabelledImages.of(splits["validation"]), LabelledImages.of(splits["test"])
    colours = [tuple(float(value) for value in each.flatten()) for each in (held_out.mean, held_out.deviation)]
    order = np.random.default_rng(0).permutation(len(held_out.label_M))
    x_NCHW = held_out.normalised(held_out.x_MCHW[order]).numpy()
    data = SourceData(x_NCHW, held_out.label_M[order], *colours)
    write_plain_bundle(net, [net.max_config], folder / "small", source=data)
    streams = []
    for seed in range(options.seeds):
        for name in ("clean", *options.corruptions):
            other = "contrast" if name != "contrast" else "fog"
            x_NCHW, label_N = images_of(test, name, seed, options)
            content = {"x": x_NCHW, "labels": label_N, "other": images_of(test, other, seed, options)[0]}
            told, points = reference(net, x_NCHW, label_N)
            file = folder / f"{name}-{seed}.npz"
            np.savez(file, allow_pickle=False, **content, **told)
            streams.append({"name": name, "seed": seed, "file": str(file), "torch_points": points})
    return {"bundle": str(folder / "small"), "streams": streams}


def images_of(test: LabelledImages, name: str, seed: int, options: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Images of a stream (N, C, H, W), normalised, and their labels (N,)."""
    given: dict[str, Any] = {"stream": "clean"} if name == "clean" else {"stream": "continual", "corruptions": (name,)}
    settings = DriftSettings.model_validate(
        {**given, "severity": options.severity, "images": options.images, "batch_size": OBSERVED_IMAGES, "seed": seed}
    )
    batches = list(stream(settings, test))
    found = [torch.cat([getattr(batch, field) for batch in batches]).numpy() for field in ("x_BCHW", "y_B")]
    return found[0], found[1]


def reference(net: SuperNet, x_NCHW: np.ndarray, label_N: np.ndarray) -> tuple[dict[str, np.ndarray], float]:
    """What torch has after some steps, and its error in points where it adapts to each batch of the stream."""
    source = AdaptiveSubnet.of(net, net.max_config)
    method = make_method(source, METHOD, [])
    batches = [x_NCHW[at : at + OBSERVED_IMAGES] for at in range(0, len(x_NCHW), OBSERVED_IMAGES)]
    answers = [method.adapt(torch.from_numpy(x_BCHW)).argmax(1).numpy() for x_BCHW in batches]
    points = 100 * float((np.concatenate(answers) != label_N).mean())
    method.reset()
    for x_BCHW in batches[:STEPS]:
        method.adapt(torch.from_numpy(x_BCHW))
    layers = source.norms.values()
    statistics = [getattr(layer, name).numpy() for name in ("running_mean", "running_var") for layer in layers]
    with torch.no_grad():
        logits = source(torch.from_numpy(x_NCHW[:64])).numpy()
    whole = [one for one in batches[:STEPS] if len(one) == OBSERVED_IMAGES]
    return {"steps": np.stack(whole), "torch_statistics": np.concatenate(statistics), "torch_logits": logits}, points


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All rows, by the process without torch."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = {
            "times": large_job(folder, options.size, options.repeats),
            "small": small_job(folder, options),
            "gradients": options.tent,
        }
        (folder / "job.json").write_text(json.dumps(job))
        command = [sys.executable, "-m", "benchmarks.device_adaptation_runs", str(folder / "job.json")]
        subprocess.run([*command, str(folder / "result.json")], check=True)
        found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    found["bars"] = bars(found)
    return found


def bars(found: dict[str, Any]) -> list[dict[str, Any]]:
    """What should hold, and whether it does."""
    slowest_ms = max(row["renewed_ms"] for row in found["times"])
    differences = [row[name] for row in found["steps"] for name in ("statistics", "logits")]
    differences += [row["difference_from_torch"] for row in found["times"]]
    kept = [row for row in found["undone"] if row["stream"] == "clean" and row["kind"] == "kept"]
    counts = [None if row in kept else row["images"] for row in found["undone"]]
    longest = max((count for count in counts if count is not None), default=0)
    worse = [row["device_points"] - row["source_points"] for row in found["errors"] if row["stream"] == "clean"]
    return [
        _bar(
            "from statistics to a session that serves", f"{MOST_MS:g} ms", f"{slowest_ms:.1f} ms", slowest_ms <= MOST_MS
        ),
        _bar(
            "images until undone, at most",
            str(MOST_IMAGES),
            str(longest),
            None not in counts and longest <= MOST_IMAGES,
        ),
        _bar(
            "difference from torch",
            f"{MOST_DIFFERENCE:g}",
            f"{max(differences):.1e}",
            max(differences) <= MOST_DIFFERENCE,
        ),
        _bar("points lost on clean streams", "0.3", f"{max(worse):.2f}", max(worse) <= 0.3),
        _bar(
            "torch imported on the device",
            "no",
            "yes" if found["torch_imported"] else "no",
            not found["torch_imported"],
        ),
    ]


def _bar(bar: str, limit: str, got: str, reached: bool) -> dict[str, Any]:
    return {"bar": bar, "limit": limit, "measured": got, "reached": reached}


def _tables(found: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """Rows of each table; those of streams are means over seeds."""
    yield found["times"]
    if "gradient_step_ms" in found:
        yield [{"a step by gradients, by image": found["gradient_step_ms"]}]
    yield _means(found["errors"], "stream", tuple(one for one in ERRORS if one in found["errors"][0]))
    yield _means(found["steps"], "stream", ("statistics", "logits"))
    yield _means(found["undone"], "wrong", ("images",))
    yield found["bars"]


def _means(rows: list[dict[str, Any]], by: str, fields: tuple[str, ...]) -> list[dict[str, Any]]:
    """Mean and largest value over the rows of each kind; None counts for neither."""
    found = []
    for kind in dict.fromkeys(row[by] for row in rows):
        line: dict[str, Any] = {by: kind}
        for field in fields:
            values = [row[field] for row in rows if row[by] == kind and row[field] is not None]
            line[f"{field}, mean"] = float(np.mean(values)) if values else None
            line[f"{field}, most"] = max(values, default=None)
        found.append(line)
    return found


def _cell(value: Any) -> str:
    return "–" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def _show(found: dict[str, Any], markdown: bool) -> None:
    for rows in _tables(found):
        show(list(rows[0]), [[_cell(value) for value in row.values()] for row in rows], markdown=markdown, width=200)
        print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=224, help="of MobileNetV2's images (224)")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--images", type=int, default=350, help="of a stream (350; the test split has 360)")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--severity", type=int, choices=range(1, 6), default=5)
    parser.add_argument("--corruptions", nargs="+", choices=CORRUPTIONS, default=list(CORRUPTIONS))
    parser.add_argument("--tent", action="store_true", help="also by gradients, for which the device needs torch")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = measured(options)
    _show(found, options.markdown)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
