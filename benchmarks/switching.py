"""What switching between the SubNets of a bundle takes, what they share in memory, and whether their answers stay the same.

    python -m benchmarks.switching [--networks resnet18 mobilenetv2_100] [--switches 50] [--json FILE]

Bundles of eight SubNets with random weights (the largest, the smallest and random ones) in onnxruntime, one thread. *Warm*:
`use` of a SubNet that is loaded, from the call to the reference that the next request reads. *Cold*: `use` of a SubNet of which
nothing is loaded, until it serves; its prepared file is there, and in the page cache. A thread sends requests all the time;
*lost* are those without an answer, or with one that differs from the single file of the SubNet that it names by more than 1e-5.
*Preparing*: what the child process takes for a SubNet, once for each device.

Memory is what is resident of a process of its own, without what it takes before the first SubNet (Python, numpy, the
runtime): the largest SubNet alone, and 1, 4 and 8 of them warm; as prepared files (memory-mapped), and as the bundle's own
files. *Peak*: the largest value that a thread sees every 5 ms meanwhile. *Within a budget*: 8 SubNets in turn, 1.3 times the
largest one's memory.

Bars: warm 1 ms, cold 300 ms (p95), nothing lost, differences of 1e-5, the budget kept.
"""

import argparse
import json
import multiprocessing
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import adaptive_runtime
from adaptive_runtime.bundle.bundles import BundleFormat, OpenBundle
from adaptive_runtime.model.deployed import DeployedModel
from adaptive_runtime.pool import Variant

SIZES = {"resnet18": 64, "mobilenetv2_100": 64}
SPACE: dict[str, Any] = {"*.width_mult": [0.5, 1.0], "stage.*.depth": [-1, 0]}
SUBNETS, COUNTS = 8, (1, 4, 8)
TOLERANCE = 1e-5
WARM_MS, COLD_MS = 1.0, 300.0
BUDGET = 1.3
EVERY_S = 0.005
ROUNDS = 4


def write(name: str, size: int, folder: Path, *, ncnn: bool = False) -> None:
    """A bundle of a network, and the answers of its single files for one image. ncnn: with files for ncnn, too."""
    import timm
    import torch

    import tailor_ir
    from tests.support.ir.networks import perturb
    from tests.support.runtime.bundled import answers_of_files, write_plain_bundle
    from tests.support.runtime.formats import with_ncnn

    torch.manual_seed(0)
    network = perturb(timm.create_model(name, num_classes=100).eval())
    space = {**SPACE, "resolution": [size // 2, size]}
    net = tailor_ir.compile(network, torch.zeros(1, 3, size, size), space)
    rng = np.random.default_rng(0)
    chosen = {net.space.digest(config): config for config in (net.max_config, net.min_config)}
    while len(chosen) < SUBNETS:
        config = net.space.sample(rng)
        chosen.setdefault(net.space.digest(config), config)
    folder.mkdir(parents=True, exist_ok=True)
    manifest = write_plain_bundle(net, list(chosen.values()), folder / "bundle")
    if ncnn:
        manifest = with_ncnn(net, manifest, folder / "bundle")
    x = rng.standard_normal((1, 3, size, size)).astype(np.float32)
    np.save(folder / "x.npy", x)
    answers: dict[tuple[str, str | None], np.ndarray] = {}
    with adaptive_runtime.load(folder / "bundle", prepares=False) as model:  # for the scaling of images
        for subnet in manifest.subnets:
            scale = model.pool.answerer(Variant(subnet.digest)).scale
            alone = manifest.model_copy(update={"subnets": (subnet,)})
            answers |= answers_of_files(alone, folder / "bundle", x if scale is None else scale(x))
    found: dict[str, Any] = {digest: logits for (digest, _), logits in answers.items()}
    np.savez(folder / "answers.npz", **found)


def switching(folder: Path, switches: int) -> dict[str, float]:
    """Warm and cold switches under requests."""
    x, answers = np.load(folder / "x.npy"), np.load(folder / "answers.npz")
    expected = {name: answers[name] for name in answers.files}
    rng = np.random.default_rng(0)
    with adaptive_runtime.load(folder / "bundle") as model:
        start = time.perf_counter()
        for variant in model.pool.variants():
            model.pool.prepare(model.pool.answerer(variant))
        prepare_s = (time.perf_counter() - start) / SUBNETS
        requests = _Requests(model, x, expected)
        digests = [one.digest for one in model.subnets]
        for digest in digests:
            model.use(digest)
        warm_ms, cold_ms = [], []
        for _ in range(switches):
            warm_ms.append(_switch(model, digests, rng))
        for _ in range(switches):
            cold_ms.append(_switch(model, digests, rng, cold=True))
        requests.end()
    return {
        "prepare_s": prepare_s,
        "warm_p50_ms": float(np.percentile(warm_ms, 50)),
        "warm_p95_ms": float(np.percentile(warm_ms, 95)),
        "cold_p50_ms": float(np.percentile(cold_ms, 50)),
        "cold_p95_ms": float(np.percentile(cold_ms, 95)),
        "requests": requests.sent,
        "lost": requests.lost,
        "difference": requests.difference,
    }


def _switch(model: DeployedModel, digests: list[str], rng: np.random.Generator, *, cold: bool = False) -> float:
    """A switch to another SubNet [ms]."""
    others = [digest for digest in digests if digest != model.state.serving.digest]
    digest = others[rng.integers(len(others))]
    if cold:
        model.pool.free(model.pool.answerer(Variant(digest)))
    start = time.perf_counter()
    model.use(digest)
    took_ms = 1e3 * (time.perf_counter() - start)
    assert model.state.serving.digest == digest
    time.sleep(0.02)
    return took_ms


class _Requests:
    """A thread that sends requests until `end`."""

    def __init__(self, model: DeployedModel, x: np.ndarray, expected: dict[str, np.ndarray]) -> None:
        self.model, self.x, self.expected = model, x, expected
        self.sent, self.lost, self.difference = 0, 0, 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        while not self._over.is_set():
            self.sent += 1
            self.lost += 1  # until it is answered
            found = self.model.infer(self.x)
            expected = self.expected[found.subnet]
            difference = float(np.abs(found.logits - expected).max() / np.abs(expected).max())
            self.difference = max(self.difference, difference)
            self.lost -= difference <= TOLERANCE

    def end(self) -> None:
        """Wait for the last answer."""
        self._over.set()
        self._thread.join()


def memory(folder: Path, counts: tuple[int, ...], *, prepares: bool, form: BundleFormat = "onnx") -> dict[str, float]:
    """Memory [MiB] with so many SubNets warm, the largest first, and the peak until then."""
    x = np.load(folder / "x.npy")
    with adaptive_runtime.load(folder / "bundle", prepares=prepares, format=form) as model, Peak(model) as peak:
        digests = [one.digest for one in model.subnets]
        found = {}
        for at, digest in enumerate(digests, 1):
            model.use(digest)
            model.infer(x)
            if at in counts:
                found[f"{at} warm"] = model.pool.used_mib
    return {**found, "peak": peak.most_mib}


def within_budget(folder: Path, budget_mib: float) -> dict[str, float]:
    """The peak [MiB] while all SubNets serve in turn within a budget."""
    x, rng = np.load(folder / "x.npy"), np.random.default_rng(0)
    with adaptive_runtime.load(folder / "bundle", memory_mib=budget_mib) as model, Peak(model) as peak:
        digests = [one.digest for one in model.subnets]
        for _ in range(ROUNDS):
            for digest in rng.permutation(digests):
                model.use(str(digest))
                for _ in range(10):
                    model.infer(x)
    return {"budget_mib": budget_mib, "peak": peak.most_mib}


class Peak:
    """The most that a model takes meanwhile [MiB]."""

    def __init__(self, model: DeployedModel) -> None:
        self.pool, self.most_mib = model.pool, 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._over.wait(EVERY_S):
            self.most_mib = max(self.most_mib, self.pool.used_mib)

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()


def alone(function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """A function in a process of its own, which has no torch."""
    with multiprocessing.get_context("spawn").Pool(1) as processes:
        return processes.apply(function, given, named)


def measure(name: str, size: int, switches: int, folder: Path) -> dict[str, Any]:
    """All of one network."""
    alone(write, name, size, folder)
    switched = alone(switching, folder, switches)
    largest = alone(memory, folder, (1,), prepares=True)
    found = {
        "network": name,
        "bundle_mb": sum(one.bytes for one in OpenBundle.open(folder / "bundle").manifest.files.values()) / 1e6,
        "prepared_mb": sum(file.stat().st_size for file in (folder / "bundle/prepared").rglob("*.*")) / 1e6,
        "switching": switched,
        "prepared": alone(memory, folder, COUNTS, prepares=True),
        "as they are": alone(memory, folder, COUNTS, prepares=False),
        "within a budget": alone(within_budget, folder, BUDGET * largest["1 warm"]),
    }
    shutil.rmtree(folder)
    return found


def _print(rows: list[dict[str, Any]]) -> None:
    table = Table(
        "network",
        "warm p50, p95 [ms]",
        "cold p50, p95 [ms]",
        "preparing [s]",
        "requests",
        "lost",
        "difference",
        "holds",
    )
    for row in rows:
        one = row["switching"]
        holds = one["warm_p95_ms"] <= WARM_MS and one["cold_p95_ms"] <= COLD_MS and not one["lost"]
        times = (f"{one[f'{kind}_p50_ms']:.3g}, {one[f'{kind}_p95_ms']:.3g}" for kind in ("warm", "cold"))
        counts = (str(one["requests"]), str(one["lost"]), f"{one['difference']:.1e}", "yes" if holds else "NO")
        table.add_row(row["network"], *times, f"{one['prepare_s']:.2g}", *counts)
    Console(width=160).print(table)
    table = Table("network", "files", *(f"{count} warm [MiB]" for count in COUNTS), "peak [MiB]")
    for row in rows:
        for kind in ("prepared", "as they are"):
            table.add_row(row["network"], kind, *(f"{value:.1f}" for value in row[kind].values()))
        kept = row["within a budget"]
        text = f"{kept['peak']:.1f} of {kept['budget_mib']:.1f}" + (
            "" if kept["peak"] <= kept["budget_mib"] else ": NOT KEPT"
        )
        table.add_row(row["network"], f"within {BUDGET} x the largest", *[""] * len(COUNTS), text)
    Console(width=160).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--switches", type=int, default=50)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    rows = []
    for name in options.networks:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(name, SIZES[name], options.switches, Path(folder) / name))
    _print(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
