"""Services while everything around them fails at random: wrong answers, lost requests, and how long nobody answers.

    python -m benchmarks.chaos [--minutes 5] [--pause-s 1.0] [--gap-s 0.02] [--deadline-ms 2000] [--seed 0] [--markdown]
        [--json FILE]

Two services, each started again at its own port when it was killed, as a supervisor of the system does it. *bundle*: two
SubNets with random weights; it adapts, senses a device whose files are made here, and remembers its choice. *split*: a SubNet
over two devices, each a process behind a relay (`benchmarks.split_faults`). Every `pause-s` in the mean one fault is drawn
for each service, held for up to a second, and mended:

- both: killed (-9), frozen;
- bundle: a sensor that stalls, sensors that tell nonsense, a battery that jumps, a row whose SubNet is corrupted when the
  service starts, a damaged memory of the choice, damaged prepared files;
- split: all faults of devices and links of `benchmarks.split_faults`.

A client of each service sends one request after another. Where a connection ends, or the service refuses for now (429, 503,
504), it asks again. *Wrong*: other than the files' own answer by more than 1e-3 of the largest value. *Lost*: no answer
within 60 s. *Longest*: from the first try to the answer, faults included.

Bars: none wrong, none lost, none longer than 10 s.
"""

import argparse
import json
import os
import random
import signal
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch

import tailor_ir
from adaptive_runtime.bundle.bundles import BundleManifest
from adaptive_runtime.offload.split import PLANS_FILE, SplitSubNet
from adaptive_runtime.server.recent import FILE as REMEMBERED
from benchmarks.faults import Act, Fault, failing
from benchmarks.split_faults import FaultyDevice, faults_of
from benchmarks.tables import show
from tests.support.agents.agent_processes import TOKEN
from tests.support.damage import DAMAGES, flip
from tests.support.ir.networks import perturb, small_net
from tests.support.links.devices import Reference, inputs, same, write_chain
from tests.support.links.plans import plans_of
from tests.support.runtime.bundled import answers_of_files, write_plain_bundle
from tests.support.runtime.device_files import write
from tests.support.runtime.service_process import AUTHORIZATION, INFER, SAMPLE, Served, body, served
from tests.support.threads import beside

PATIENCE_S, LONGEST_S, AGAIN_S = 60.0, 10.0, 0.02
ASK_S = 5.0
"""Patience with one try."""
FOR_NOW = (429, 503, 504)
IMAGES, TOLERANCE = 32, 1e-3
RULES = "battery < 20% -> latency first; temperature > 80 C -> latency first; accuracy first"
BATTERY, HEAT, MEMORY = "sys/class/power_supply/BAT0", "sys/class/thermal/thermal_zone0/temp", "proc/meminfo"
Answer = Callable[[int, Mapping[str, Any]], np.ndarray]
"""The right answer of an image, by the parameters of the one that came."""


class Supervised:
    """A service that can be killed and is started again at the same port."""

    def __init__(self, folder: Path, work: Path, *options: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._folder, self._work, self._options = folder, work, (*options, "--port", str(port))
        self._stack, self._starts = ExitStack(), 0
        self.start()

    def start(self) -> None:
        self._starts += 1
        log = self._work / f"{self._folder.name}-{self._starts}.log"
        self._served: Served = self._stack.enter_context(served(self._folder, log, *self._options))

    def kill(self) -> None:
        self._served.process.kill()
        self._served.process.wait()
        self._stack.close()

    def stop(self, number: int) -> None:
        os.kill(self._served.process.pid, number)

    def again(self, before: Act = lambda: None) -> None:
        """Kill, change something, and start."""
        self.kill()
        before()
        self.start()

    def close(self) -> None:
        if self._served.process.poll() is None:
            self.stop(signal.SIGCONT)
        self._stack.close()

    @property
    def faults(self) -> list[Fault]:
        """Those of any service: killed and frozen."""
        frozen = Fault("frozen", partial(self.stop, signal.SIGSTOP), partial(self.stop, signal.SIGCONT))
        return [Fault("killed", self.kill, self.start), frozen]


@dataclass(slots=True)
class Asked:
    """What a client has seen."""

    counts: Counter[str] = field(default_factory=Counter)
    waited_s: list[float] = field(default_factory=list)

    def until(self, ended: threading.Event, url: str, xs: list[np.ndarray], right: Answer, gap_s: float) -> None:
        """Requests one after another."""
        number = 0
        with httpx.Client(base_url=url, headers=AUTHORIZATION, timeout=ASK_S) as http:
            while not ended.wait(gap_s):
                self.ask(http, number % len(xs), xs, right)
                number += 1

    def ask(self, http: httpx.Client, number: int, xs: list[np.ndarray], right: Answer) -> None:
        """One request, again and again until it is answered."""
        self.counts["requests"] += 1
        start_s = time.monotonic()
        while time.monotonic() < start_s + PATIENCE_S:
            try:
                response = http.post(INFER, **body(xs[number]))
            except httpx.TransportError:
                self.counts["no connection"] += 1
                time.sleep(AGAIN_S)
                continue
            if response.status_code in FOR_NOW:
                self.counts["refused for now"] += 1
                time.sleep(AGAIN_S)
                continue
            self._judge(response, number, right)
            self.waited_s.append(time.monotonic() - start_s)
            return
        self.counts["lost"] += 1

    def _judge(self, response: httpx.Response, number: int, right: Answer) -> None:
        if response.status_code != 200:
            self.counts["lost"] += 1
            print(f"{response.status_code}: {response.text}")
            return
        told = response.json()
        (logits,) = (one for one in told["outputs"] if one["name"] == "logits")
        got = np.asarray(logits["data"], np.float32).reshape(logits["shape"])
        self.counts["answered"] += 1
        self.counts["late"] += told["parameters"].get("late_ms", 0.0) > 0
        self.counts["wrong"] += not same(got, right(number, told["parameters"]), TOLERANCE)


def bundle_of(folder: Path) -> BundleManifest:
    """The largest and the smallest SubNet of a small network."""
    torch.manual_seed(0)
    space: dict[str, Any] = {"*.width_mult": [0.5, 1]}
    net = tailor_ir.compile(perturb(small_net(blocks=3)), torch.randn(1, *SAMPLE), space)
    return write_plain_bundle(net, [net.max_config, net.min_config], folder)


def device_files(root: Path) -> Path:
    """A device with a battery, a sensor of heat and memory."""
    memory = "MemTotal: 4000000 kB\nMemAvailable: 2000000 kB"
    files = {f"{BATTERY}/type": "Battery", f"{BATTERY}/status": "Discharging", f"{BATTERY}/capacity": 80}
    return write(root, {**files, HEAT: 40_000, MEMORY: memory})


def stalls(file: Path) -> None:
    """A sensor whose file is a pipe that nobody writes."""
    file.unlink()
    os.mkfifo(file)


def answers_again(root: Path) -> None:
    """The sensor's file is there again; who waits for the pipe goes on."""
    file = root / HEAT
    writer = os.open(file, os.O_RDWR | os.O_NONBLOCK)
    file.unlink()
    os.close(writer)
    device_files(root)


def bundle_faults(
    service: Supervised, bundle: Path, manifest: BundleManifest, state: Path, root: Path, seed: int
) -> list[Fault]:
    """Faults of the device, of rows and of files of a service that adapts."""
    rng = random.Random(seed)
    row = bundle / manifest.subnets[0].nets["onnx"].files[0]
    whole = row.read_bytes()

    def damaged(folder: Path, name: str) -> None:
        for file in sorted(folder.glob(name)):
            if file.is_file():
                rng.choice(DAMAGES)(file)

    nonsense = {f"{BATTERY}/capacity": "full", MEMORY: "MemTotal: much kB\nMemAvailable: little kB", HEAT: "hot"}
    return [
        *service.faults,
        Fault("sensor stalls", partial(stalls, root / HEAT), partial(answers_again, root)),
        Fault("sensors tell nonsense", partial(write, root, nonsense), partial(device_files, root)),
        Fault("battery jumps", partial(write, root, {f"{BATTERY}/capacity": 5}), partial(device_files, root)),
        Fault(
            "row corrupted",
            partial(service.again, partial(flip, row)),
            partial(service.again, partial(row.write_bytes, whole)),
        ),
        Fault(
            "memory of the choice damaged", partial(service.again, partial(damaged, state, REMEMBERED)), lambda: None
        ),
        Fault(
            "prepared files damaged", partial(service.again, partial(damaged, bundle / "prepared", "*")), lambda: None
        ),
    ]


@contextmanager
def bundle_service(work: Path, options: argparse.Namespace) -> Iterator[tuple[str, list[np.ndarray], Answer, Any]]:
    """Address, images, right answers and faults of the service of a bundle."""
    bundle, state, root = work / "bundle", work / "state", device_files(work / "device")
    manifest = bundle_of(bundle)
    rng = np.random.default_rng(options.seed)
    x_NCHW = rng.standard_normal((IMAGES, *SAMPLE)).astype(np.float32)
    expected = answers_of_files(manifest, bundle, x_NCHW)
    words = ["--adapts", "--budget-ms", "2000", "--deadline-ms", str(options.deadline_ms), "--policy", RULES]
    words += ["--state", str(state), "--sensors-root", str(root), "--decisions", str(work / "decisions.jsonl")]
    service = Supervised(bundle, work, *words)

    def right(number: int, told: Mapping[str, Any]) -> np.ndarray:
        return np.asarray(expected[told["subnet"], None])[number : number + 1]

    try:
        faults = bundle_faults(service, bundle, manifest, state, root, options.seed)
        yield service.url, [x[None] for x in x_NCHW], right, faults
    finally:
        service.close()


@contextmanager
def split_service(work: Path, options: argparse.Namespace) -> Iterator[tuple[str, list[np.ndarray], Answer, Any]]:
    """The same of a SubNet over two devices."""
    folder, token = write_chain(work / "split"), work / "token"
    split = SplitSubNet.open(folder)
    (folder / PLANS_FILE).write_text(plans_of(split, "a", "b").to_json())
    token.write_text(TOKEN)
    token.chmod(0o600)
    xs = inputs(split, IMAGES, options.seed)
    expected = [Reference(split)(x) for x in xs]
    with ExitStack() as stack:
        words = ["--deadline-ms", str(options.deadline_ms), "--workers", "2"]
        devices = {name: FaultyDevice() for name in ("a", "b")}
        for name, device in devices.items():
            stack.callback(device.close)
            words += ["--device", f"{name}={device.address.url}", "--device-token", f"{name}={token}"]
        service = Supervised(folder, work, *words)
        stack.callback(service.close)
        faults = [
            *service.faults,
            *(
                fault._replace(name=f"{fault.name}: {name}")
                for name, device in devices.items()
                for fault in faults_of([device])
                if not fault.name.startswith("straight")
            ),
        ]
        yield service.url, xs, lambda number, _: expected[number], faults


def chaos(options: argparse.Namespace, work: Path) -> dict[str, dict[str, Any]]:
    """What the clients of both services have seen, by service."""
    makers = {"bundle": bundle_service, "split": split_service}
    ended, found = threading.Event(), dict[str, dict[str, Any]]()
    with ExitStack() as stack:
        seen, asks, counts = dict[str, Asked](), list[Callable[[], None]](), dict[str, Counter[str]]()
        for at, (name, make) in enumerate(makers.items()):
            folder = work / name
            folder.mkdir()
            url, xs, right, faults = stack.enter_context(make(folder, options))
            seen[name] = Asked()
            asks.append(partial(seen[name].until, ended, url, xs, right, options.gap_s))
            counts[name] = stack.enter_context(failing(faults, options.pause_s, options.seed + at))
        with beside(*asks, over=ended):
            ended.wait(60 * options.minutes)
        for name, one in seen.items():
            keys = ("requests", "answered", "wrong", "lost", "late", "no connection", "refused for now")
            waited_s = one.waited_s or [0.0]
            longest = {"p50_ms": 1e3 * float(np.median(waited_s)), "longest_s": max(waited_s)}
            found[name] = {**{key: one.counts[key] for key in keys}, **longest, "faults": dict(counts[name])}
    return found


def main() -> None:
    """Measure, print, and end with 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--pause-s", type=float, default=1.0, help="between faults, mean")
    parser.add_argument("--gap-s", type=float, default=0.02, help="between requests")
    parser.add_argument("--deadline-ms", type=float, default=2000.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = chaos(options, Path(folder))
    heads = ["service", *(key for key in found["bundle"] if key != "faults"), "faults"]
    rows = [
        [name, *(_shown(row[head]) for head in heads[1:-1]), str(sum(row["faults"].values()))]
        for name, row in found.items()
    ]
    show(heads, rows, markdown=options.markdown)
    for name, row in found.items():
        print(f"{name}: {', '.join(f'{count} {fault}' for fault, count in sorted(row['faults'].items()))}")
    if options.json is not None:
        options.json.write_text(json.dumps({"services": found, "options": vars(options)}, default=str, indent=1))
    missed = [f"{name}: {key}" for name, row in found.items() for key in ("wrong", "lost") if row[key]]
    missed += [f"{name}: {row['longest_s']:.1f} s" for name, row in found.items() if row["longest_s"] > LONGEST_S]
    if missed:
        raise SystemExit(f"missed: {', '.join(missed)}")


def _shown(value: float) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
