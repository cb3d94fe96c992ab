"""What a service costs beside the model in the same process, what it does with 10,000 requests at once, how fast it is back.

    python -m benchmarks.service [--network resnet18] [--requests 500] [--at-once 10000] [--restarts 10] [--json FILE]

A bundle of two SubNets with random weights in onnxruntime, one thread. *Alone*: `infer` in this process. *Served*: the same
images as binary tensors over one connection that stays open, to a service in a process of its own; both in turn, in blocks of
ten, so that load of the machine meets both. *Overhead*: the difference of the medians. *Ratio*: requests of the service in a
second over those of the model. *Eight clients*: the same by eight threads at once.

*Beside the model*: what a request takes more than its answer says it took in the model, median: of `infer` in this process, and
by HTTP over the Unix socket and over TCP; in turn, as above.

*At once*: connections are opened first, then each sends a request; all must be answered with 200 or 429, and what the service
has counted must be the same. *Restart*: from `kill -9` until the first answer of the service that is started then, with the
choice that was served before.

Bars: none of the requests at once lost; a restart takes 2 s at most.
"""

import argparse
import asyncio
import json
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from rich.console import Console
from rich.table import Table

import adaptive_runtime
from adaptive_runtime.server.protocol import LENGTH_HEADER
from tests.support.runtime.service_process import AUTHORIZATION, INFER, Served, body, burst, by_socket, served
from tests.support.threads import all_at_once

SIZE = 64
SPACE: dict[str, Any] = {"*.width_mult": [0.5, 1.0]}
BLOCK, CLIENTS = 10, 8
RESTART_S = 2.0
PATIENT = ("--deadline-ms", "600000")


def write(name: str, folder: Path) -> None:
    """A bundle of a network's largest and smallest SubNet."""
    import timm
    import torch

    import tailor_ir
    from tests.support.ir.networks import perturb
    from tests.support.runtime.bundled import write_plain_bundle

    torch.manual_seed(0)
    network = perturb(timm.create_model(name, num_classes=100).eval())
    net = tailor_ir.compile(network, torch.zeros(1, 3, SIZE, SIZE), SPACE)
    write_plain_bundle(net, [net.max_config, net.min_config], folder)


def overhead(service: Served, bundle: Path, x: np.ndarray, requests: int) -> dict[str, float]:
    """Latency and throughput, alone and served."""
    sent = body(x)
    with adaptive_runtime.load(bundle) as model:
        alone_ms, served_ms = [], []
        for _ in range(max(1, requests // BLOCK)):
            alone_ms += [_timed_ms(lambda: model.infer(x)) for _ in range(BLOCK)]
            served_ms += [_timed_ms(lambda: service.http.post(INFER, **sent)) for _ in range(BLOCK)]
    together_s = _together(service, sent, requests)
    alone, over = float(np.median(alone_ms)), float(np.median(served_ms))
    return {
        "alone_p50_ms": alone,
        "served_p50_ms": over,
        "served_p99_ms": float(np.percentile(served_ms, 99)),
        "overhead_ms": over - alone,
        "ratio": sum(alone_ms) / sum(served_ms),
        "eight_clients_ratio": requests / together_s / (1e3 / float(np.mean(alone_ms))),
    }


def beside(service: Served, path: Path, bundle: Path, x: np.ndarray, requests: int) -> dict[str, float]:
    """Of a request by each way what it takes beside the model [us]: copies, queue, threads, and the way there and back."""
    sent = body(x, binary_data_output=True)
    with adaptive_runtime.load(bundle) as model, by_socket(path) as client:
        ways: dict[str, Callable[[], float]] = {
            "process": lambda: model.infer(x).latency_ms,
            "socket": lambda: _latency_ms(client.post(INFER, **sent)),
            "tcp": lambda: _latency_ms(service.http.post(INFER, **sent)),
        }
        found_us: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(max(1, requests // BLOCK)):
            for way, call in ways.items():
                for _ in range(BLOCK):
                    start = time.perf_counter()
                    in_model_ms = call()
                    found_us[way].append(1e6 * (time.perf_counter() - start) - 1e3 * in_model_ms)
    return {f"{way}_beside_p50_us": float(np.median(values)) for way, values in found_us.items()}


def _latency_ms(response: httpx.Response) -> float:
    """In the model, as an answer with binary values says."""
    head = json.loads(response.raise_for_status().content[: int(response.headers[LENGTH_HEADER])])
    return float(head["parameters"]["latency_ms"])


def _timed_ms(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


def _together(service: Served, sent: dict[str, Any], requests: int) -> float:
    """Seconds in which several clients get all their answers."""

    def ask() -> None:
        with httpx.Client(base_url=service.url, headers=AUTHORIZATION, timeout=600) as http:
            for _ in range(requests // CLIENTS):
                http.post(INFER, **sent).raise_for_status()

    start = time.perf_counter()
    all_at_once(*[ask] * CLIENTS)
    return time.perf_counter() - start


def at_once(service: Served, x: np.ndarray, count: int) -> dict[str, float]:
    """Statuses of requests at once, and how many of them the service has not counted."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sent = body(x)
    before = sum(service.state()["outcomes"].values())
    start = time.perf_counter()
    found = asyncio.run(burst(service.url, count, sent["content"], {**AUTHORIZATION, **sent["headers"]}))
    took_s = time.perf_counter() - start
    counted = sum(service.state()["outcomes"].values()) - before
    lost = count - found[200] - found[429]
    return {
        "at_once": count,
        "answered": found[200],
        "refused_429": found[429],
        "lost": lost,
        "not_counted": count - counted,
        "took_s": took_s,
    }


def restarts(bundle: Path, folder: Path, x: np.ndarray, count: int) -> dict[str, float]:
    """Seconds from kill -9 until the first answer after the start."""
    options = ("--state", str(folder / "state"))
    took_s: list[float] = []
    choices: set[str] = set()
    killed_s: float | None = None
    for _ in range(count + 1):
        with served(bundle, folder / "log", *options) as service:
            answer = service.http.post(INFER, **body(x)).raise_for_status().json()
            if killed_s is not None:
                took_s.append(time.perf_counter() - killed_s)
            choices.add(answer["parameters"]["subnet"])
            time.sleep(0.5)
            service.process.kill()
            killed_s = time.perf_counter()
    return {"restart_p50_s": float(np.median(took_s)), "restart_max_s": max(took_s), "choices": len(choices)}


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--at-once", type=int, default=10_000)
    parser.add_argument("--restarts", type=int, default=10)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="autotailor-service-"))
    try:
        bundle = folder / "bundle"
        write(arguments.network, bundle)
        x = np.random.default_rng(0).standard_normal((1, 3, SIZE, SIZE)).astype(np.float32)
        path = folder / "socket"
        with served(bundle, folder / "log", *PATIENT, "--socket", str(path)) as service:
            service.http.post(INFER, **body(x)).raise_for_status()
            found = overhead(service, bundle, x, arguments.requests)
            found |= beside(service, path, bundle, x, arguments.requests)
            found |= at_once(service, x, arguments.at_once)
        found |= restarts(bundle, folder, x, arguments.restarts)
    finally:
        shutil.rmtree(folder)
    table = Table(title=f"Service of {arguments.network}, {SIZE} x {SIZE}")
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in found.items():
        table.add_row(name, f"{value:.4g}" if isinstance(value, float) else str(value))
    Console().print(table)
    if found["lost"] or found["restart_max_s"] > RESTART_S or found["choices"] > 1:
        Console().print("[red]a bar is missed[/red]")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
