"""Trained .onnx files as their owners have them: from the file and unlabelled inputs to a measured front and checked files.

    python -m benchmarks.own.real_files FOLDER [--only NAME] [--work FOLDER] [--seconds 900]

FOLDER as for `benchmarks.real_files`. For each file, inputs are drawn or synthesised here, and the command line is called as
an owner would call it: `autotailor run model=onnx model.path=FILE data=unlabelled data.path=INPUTS.npz`, with few epochs.
Rates and modes are given by `model.constants`; states are not given. Legend: N samples, T samples of a signal or frames, H
height, W width.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from PIL import Image, ImageDraw, ImageFont
from rich.console import Console
from rich.table import Table

from benchmarks.real_files import files_in
from tasks.base.artifacts import write_bytes
from tasks.base.schemas.exports import ExportIndex

RATE = 16_000
QUICK = (
    "+preset=quick",
    "finetune.epochs=2",
    "finetune.batch_size=8",
    "finetune.learning_rate=0.0005",  # the weights are trained; that of the preset is for random ones
    "predict.random_subnets=6",
    "search.budget_count=3",
    "export.formats=[onnx]",
)
COLUMNS = ("file", "ends", "s", "budgets met", "smallest's fidelity", "speed-up")
Arrays = dict[str, np.ndarray]


def pages(count: int, height: int, width: int, lines: int) -> np.ndarray:
    """Pictures (N, 3, H, W) in [-1, 1] of text lines on uneven grounds."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        grey = Image.new("L", (width, height), int(rng.integers(150, 255)))
        draw, step = ImageDraw.Draw(grey), height / lines
        for line in range(lines):
            font = ImageFont.load_default(float(step * rng.uniform(0.4, 0.8)))
            text = " ".join(
                "".join(map(chr, rng.integers(97, 123, rng.integers(2, 9)))) for _ in range(width // 16 + 1)
            )
            draw.text(
                (rng.uniform(0, width / 8), step * line), text[: max(3, width // 10)], int(rng.integers(0, 100)), font
            )
        tint = rng.uniform(0.7, 1, (3, 1, 1)) * (1 - rng.uniform(0, 0.3) * np.linspace(0, 1, width))
        found.append(np.asarray(grey)[None] / 127.5 * tint - 1 + rng.normal(0, 0.03, (3, height, width)))
    return np.clip(np.stack(found), -1, 1).astype(np.float32)


def sounds(count: int, samples: int) -> np.ndarray:
    """Clips (N, T) in [-1, 1] of syllables of harmonics with pauses between them, in noise."""
    rng = np.random.default_rng(1)
    found = []
    for _ in range(count):
        t = np.arange(samples) / RATE
        pitch_hz = rng.uniform(90, 260) * (1 + 0.1 * np.sin(2 * np.pi * rng.uniform(0.5, 3) * t))
        phase = 2 * np.pi * np.cumsum(pitch_hz) / RATE
        voice = sum(np.sin(number * phase) * np.exp(-number / rng.uniform(2, 8)) for number in range(1, 16))
        loud = np.clip(np.sin(2 * np.pi * rng.uniform(1, 5) * t + rng.uniform(0, 6)) + rng.uniform(-0.5, 0.5), 0, 1)
        found.append(0.3 * loud * voice + rng.normal(0, 10 ** rng.uniform(-4, -1), samples))
    return np.clip(np.stack(found), -1, 1).astype(np.float32)


def levels(count: int, frames: int, bands: int) -> np.ndarray:
    """Logarithmic power spectra (N, T, bands) of such clips, one frame every 10 ms."""
    clips, window = sounds(count, frames * 160 + 2 * bands), np.hanning(2 * bands)
    cut = np.stack([clips[:, start : start + 2 * bands] for start in range(0, frames * 160, 160)], 1)
    return np.log10(np.abs(np.fft.rfft(cut * window))[..., :bands] ** 2 + 1e-6).astype(np.float32) / 4


def contents(count: int) -> np.ndarray:
    """The first and last 1024 bytes of this environment's files, 256 after their end."""
    files = sorted(one for one in Path(sys.prefix).rglob("*.*") if one.is_file() and not one.is_symlink())
    found = np.full((count, 2048), 256, np.int32)
    for row, number in zip(found, np.random.default_rng(2).integers(0, len(files), count), strict=True):
        content = np.frombuffer(files[number].read_bytes(), np.uint8)
        first, last = content[:1024], content[-1024:]
        row[: len(first)], row[2048 - len(last) :] = first, last
    return found


def waves(count: int, channels: int, samples: int) -> np.ndarray:
    """Signals (N, channels, T) with the falling spectrum and the bursts of an electroencephalogram."""
    rng = np.random.default_rng(3)
    noise = np.cumsum(rng.normal(0, 1, (count, channels, samples)), 2)
    noise -= np.apply_along_axis(lambda one: np.linspace(one[0], one[-1], samples), 2, noise)
    bursts = np.sin(np.arange(samples) * rng.uniform(0.1, 0.6, (count, 1, 1))) * (
        rng.random((count, channels, 1)) < 0.5
    )
    return ((noise / noise.std(2, keepdims=True)) + 2 * bursts).astype(np.float32)


def _last(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


INPUTS: Mapping[str, Callable[[], tuple[np.ndarray, ...]]] = {
    "mobile_v2.0_cls": lambda: (pages(300, 48, 192, 1),),
    "OCRv4_rec|OCRv6_rec": lambda: (pages(120, 48, 160, 1),),
    "OCRv4_det|OCRv6_det": lambda: (pages(100, 160, 160, 5),),
    "common_det": lambda: (pages(30, 416, 416, 4) * 127.5 + 127.5,),
    r"ddddocr: common": lambda: (pages(100, 64, 160, 1)[:, :1],),
    "320n": lambda: (pages(60, 160, 160, 3) / 2 + 0.5,),
    "magika": lambda: (contents(300),),
    "nmp": lambda: (sounds(40, 43844)[..., None],),
    "modelA|modelB": lambda: (waves(60, 100, 120),),
    "spindle": lambda: (waves(24, 1, 7500), waves(24, 15, 7500)),
    "pnet": lambda: (_last(pages(300, 48, 48, 3)),),
    "rnet": lambda: (_last(pages(300, 24, 24, 2)),),
    "onet": lambda: (_last(pages(300, 48, 48, 2)),),
    "sig_bak_ovr": lambda: (sounds(24, 144_160),),
    "bak_ovr|sig": lambda: (levels(24, 901, 161),),
    "model_v8": lambda: (levels(60, 900, 120),),
    "Run_": lambda: (levels(300, 48, 160).reshape(100, 3, 48, 160),),
    "plcmos": lambda: (
        levels(100, 60, 257)[:, None],
        np.random.default_rng(4).normal(size=(100, 64)).astype(np.float32),
    ),
    "silero": lambda: (sounds(40, 8 * 576).reshape(-1, 576),),
    "nsfw": lambda: (_last(pages(40, 224, 224, 6)) * 127.5,),
    "orinet": lambda: (pages(40, 320, 320, 14),),
}
"""Arrays of the data inputs, in order, by a part of the file's name; states and constants are not among them."""


def arrays_of(name: str, path: Path) -> tuple[Arrays, list[str]]:
    """Arrays by name of the file's inputs, and the options that say the value of inputs without an axis."""
    graph = onnx.load(path, load_external_data=False).graph
    stored = {one.name for one in graph.initializer}
    inputs = {one.name: one.type.tensor_type.shape.dim for one in graph.input if one.name not in stored}
    made = next(make for part, make in INPUTS.items() if re.search(part, name))()
    axes = {key: sizes for key, sizes in inputs.items() if len(sizes)}
    constants = [f"{key}:{RATE}" for key in inputs if key not in axes] + [f"{key}:0" for key in inputs if key == "h0"]
    options = [f"model.constants={{{','.join(constants)}}}"] if constants else []
    return dict(zip(axes, made, strict=False)), options


def run(name: str, path: Path, work: Path, seconds: float) -> dict[str, Any]:
    """One row of the table."""
    folder = work / re.sub(r"\W+", "_", name)
    folder.mkdir(parents=True, exist_ok=True)
    arrays, options = arrays_of(name, path)
    np.savez(folder / "inputs.npz", **arrays)  # type: ignore[arg-type]
    given = [f"model.path='{path}'", f"data.path='{folder / 'inputs.npz'}'", f"output_dir='{folder / 'out'}'"]
    start = time.perf_counter()
    command = [sys.executable, "-m", "flows.cli", "run", *QUICK, "model=onnx", "data=unlabelled", *given, *options]
    row: dict[str, Any] = {"file": name}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        write_bytes(folder / "log", (done.stdout + done.stderr).encode())
        row["ends"] = done.returncode if not done.returncode else _line(done.stderr or done.stdout)
    except subprocess.TimeoutExpired:
        row["ends"] = f"not after {seconds:g} s"
    row["s"] = round(time.perf_counter() - start)
    return row if row["ends"] else row | measured(folder / "out")


def measured(output_dir: Path) -> dict[str, Any]:
    """The front of a run: budgets that files met by measurement, and the fastest file beside the slowest."""
    index = max(output_dir.rglob("index.json"), key=lambda one: one.stat().st_mtime)
    winners = [one for one in ExportIndex.read(index).winners if one.measured_ms]
    fastest = min(winners, key=lambda one: one.measured_ms or 0)
    slowest_ms, fastest_ms = max(one.measured_ms or 0 for one in winners), fastest.measured_ms or 0
    met = sum((one.measured_ms or 0) <= one.budget_ms for one in winners)
    return {
        "budgets met": f"{met} of {len(winners)}",
        "smallest's fidelity": round(fastest.accuracy["test"], 3),
        "speed-up": f"{slowest_ms:.3g} -> {fastest_ms:.3g} ms, x {slowest_ms / fastest_ms:.2f}",
    }


def _line(text: str) -> str:
    return next((one for one in reversed(text.splitlines()) if one.strip()), "")[:300]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="a regular expression")
    parser.add_argument("--work", type=Path, default=Path("outputs/real_files"))
    parser.add_argument("--seconds", type=float, default=900, help="limit of each file")
    arguments = parser.parse_args()
    table, rows = Table(*COLUMNS), []
    for name, path in files_in(arguments.folder, arguments.work / "files"):
        if re.search(arguments.only, name):
            rows.append(run(name, path.resolve(), arguments.work.resolve(), arguments.seconds))
            print(json.dumps(rows[-1]), flush=True)
            table.add_row(*(str(rows[-1].get(column, "")) for column in COLUMNS))
    Console().print(table)
    print(f"{sum(not row['ends'] for row in rows)} of {len(rows)} files run to a front")


if __name__ == "__main__":
    main()
