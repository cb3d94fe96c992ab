"""A fleet of a thousand simulated devices: enrolment, one table for each kind, outliers found, a bundle rolled out.

    python -m benchmarks.thousand_devices [--devices 1000] [--faulty 0.05] [--operators 506] [--limit-s 1500] [--json FILE]

Real are: registry and relay, each a process of its command (SQLite, loopback), the command `autotailor fleet profile`,
operators and models of a SuperNet (mobilenetv3_small_050 at 64 pixels), the bundle, and every request. Simulated are devices
(`benchmarks.thin_devices`, all in one process): they answer with latencies of a model of their kind in the place of running it.
Faulty ones tell impossible sums, invent latencies, hang, break off answers, replay what they told before, take 2 s for each
answer, or take 1.6 times as long as their kind. Windows of telemetry last `--window-s` seconds in the place of an hour.

*Found*: faulty devices with outlying times, or without answers, as `fleet profile` names them; *false alarms*: other devices
that it names. *Error of tables*: of latencies in the tables against the model, without what devices of one kind differ in.
CPU is that of a process. The last rows are of ten times as many devices, by multiplication: of CPU, and of the memory that has
come since the start. Each process has one loop: the one with the most CPU is the bottleneck of a step.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import timm
import torch

import tailor_ir
from benchmarks.rollout_fleet import KINDS
from benchmarks.tables import show
from benchmarks.thin_devices import ODD, SILENT, true_ms
from tasks.base.schemas.placed import OPERATORS_FILE
from tasks.measuring.lut import LutStore
from tasks.measuring.operators import write_operators
from tasks.operations.fleet.devices import BundleStore, list_devices
from tasks.operations.fleet.registry import Registry
from tasks.operations.fleet.rollouts import begin, list_rollouts
from tasks.operations.fleet.settings import RolloutSettings
from tests.support.ir.networks import perturb, small_net
from tests.support.runtime.bundled import write_plain_bundle

MIB = 1 << 20
LOOK_S = 1.0
TEN_TIMES = 10
ROLLOUT = RolloutSettings(windows_before=3, least_windows=2, most_windows=20, least_requests=500, device_requests=30)
TOKEN = "token-of-those-who-measure-devices"


class ServedProcess:
    """A command that serves, until the block ends."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.url, self._process, self._seen = url, psutil.Process(process.pid), process

    def cpu_s(self) -> float:
        """User and system time so far."""
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def peak_mib(self) -> float:
        """The most resident memory that it has had."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024


@contextmanager
def served(folder: Path, words: list[str]) -> Iterator[ServedProcess]:
    """`autotailor fleet WORDS`, once it is ready."""
    command = [sys.executable, "-m", "flows.cli", "fleet", *words]
    with (folder / f"{words[0]}.log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder, env=environment()
        )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if " ready: " in line:
                yield ServedProcess(process, line.rpartition(" ready: ")[2].strip())
                break
        else:
            raise SystemExit((folder / f"{words[0]}.log").read_text())
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


def children_cpu_s() -> float:
    """User and system time of processes that have been waited for."""
    times = os.times()
    return times.children_user + times.children_system


def environment() -> dict[str, str]:
    """Of processes: this checkout, one thread each."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1]), "OMP_NUM_THREADS": "1"}


def write_supernet(folder: Path, operators: int) -> None:
    """The operators of a SuperNet, as the stage `enumerate` writes them."""
    torch.manual_seed(0)
    network = timm.create_model("mobilenetv3_small_050", num_classes=10).eval()
    net = tailor_ir.compile(network, torch.zeros(1, 3, 64, 64))
    witnesses = list(net.unique_operators())[:operators]
    folder.mkdir()
    write_operators(folder / OPERATORS_FILE, {feature: {} for feature in witnesses})


def write_bundle(folder: Path) -> None:
    """Two SubNets that share weights."""
    torch.manual_seed(0)
    net = tailor_ir.compile(perturb(small_net(blocks=3)), torch.randn(1, 3, 16, 16), {"*.width_mult": [0.5, 1]})
    write_plain_bundle(net, [net.max_config, net.min_config], folder)


class Played:
    """One fleet from the first token to the last bundle. All times in seconds."""

    def __init__(self, options: argparse.Namespace, folder: Path, stack: ExitStack) -> None:
        self.options, self.folder = options, folder
        self.until_s = time.monotonic() + options.limit_s
        self.database, self.files = f"sqlite:///{folder}/fleet.db", folder / "files"
        self.registry = Registry.open(self.database, options.window_s)
        stack.callback(self.registry.close)
        (folder / "token").write_text(TOKEN)
        (folder / "token").chmod(0o600)
        place = [f"database={self.database}"]
        self.serving = stack.enter_context(served(folder, ["serve", *place, f"files={self.files}", "port=0"]))
        self.relay = stack.enter_context(
            served(folder, ["relay", *place, "relay_port=0", f"token_file={folder}/token"])
        )
        self.devices: dict[str, tuple[str, str]] = {}
        self.figures: dict[str, Any] = {
            "devices": options.devices,
            "faulty": options.faulty,
            "load_average": os.getloadavg(),
            "registry_start_mib": self.serving.peak_mib(),
            "relay_start_mib": self.relay.peak_mib(),
        }
        self._stack = stack

    def enrol(self) -> subprocess.Popen[str]:
        """Tokens, and all devices as one process."""
        self.command("enrol", f"count={self.options.devices}", f"to={self.folder}/tokens")
        words = [
            str(self.folder / "tokens"),
            self.serving.url,
            self.relay.url,
            "--out",
            str(self.folder / "counts.json"),
        ]
        words += ["--faulty", str(self.options.faulty), "--seed", str(self.options.seed)]
        command = [sys.executable, "-m", "benchmarks.thin_devices", *words]
        fleet = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=self.folder, env=environment()
        )
        self._stack.callback(fleet.kill)
        assert fleet.stdout is not None
        told = json.loads(fleet.stdout.readline())
        self.devices = {device: (kind, fault) for device, (kind, fault) in told["devices"].items()}
        self.figures["enrolled_s"] = told["enrolled_s"]
        return fleet

    def profile(self) -> None:
        """One table for each kind, by the command."""
        before = self.relay.cpu_s(), time.perf_counter(), children_cpu_s()
        out = self.folder / "profile.json"
        options = ["profile.limit_s=30", "profile.at_once=32"]
        place = [f"relay={self.relay.url}", f"token_file={self.folder}/token", f"store={self.folder}/luts"]
        self.command("profile", str(self.folder / "operators"), *place, *options, "--json", str(out))
        found = json.loads(out.read_text())
        self.figures |= {
            "profiled_s": time.perf_counter() - before[1],
            "relay_profile_cpu_s": self.relay.cpu_s() - before[0],
            "command_profile_cpu_s": children_cpu_s() - before[2],
            "measurements": sum(kind["measurements"] for kind in found["kinds"]),
            "tables": len(found["kinds"]),
            "away": len(found["away"]),
            **self._named(found),
            **self._errors(),
        }

    def _named(self, found: Mapping[str, Any]) -> dict[str, Any]:
        verdicts = {one["device"]: one["state"] for kind in found["kinds"] for one in kind["verdicts"]}
        verdicts |= dict.fromkeys(found["away"], "failed")
        bad = {one for one, (_, fault) in self.devices.items() if fault in ODD | SILENT}
        named = {one for one, state in verdicts.items() if state in ("outlier", "failed")}
        by_fault: dict[str, list[int]] = {}
        for one, (_, fault) in self.devices.items():
            if fault:
                count = by_fault.setdefault(fault, [0, 0])
                count[0] += one in named
                count[1] += 1
        return {
            "found": len(named & bad),
            "to_find": len(bad),
            "false_alarms": len(named - bad),
            "sound": len(self.devices) - len(bad),
            "by_fault": by_fault,
        }

    def _errors(self) -> dict[str, Any]:
        """Of the tables' latencies against the model."""
        kinds = {kind.name: kind for kind in KINDS}
        errors, counts = [], []
        for folder in LutStore(self.folder / "luts").folders():
            rows = LutStore(folder).valid_rows()
            counts.append(len(rows))
            kind = kinds[rows[0]["description"].partition(", ")[2]]
            errors += [abs(row["p50_ms"] / true_ms(row["digest"], kind) - 1) for row in rows if row["p50_ms"]]
        return {
            "operators": min(counts),
            "median_error": median(errors),
            "p99_error": float(np.quantile(errors, 0.99)),
            "largest_error": max(errors),
        }

    def roll_out(self) -> None:
        """A bundle, from the first stage until no device is waited for."""
        store = BundleStore(self.files)
        bundle = store.add(self.registry, self.folder / "bundle", "new")
        self.figures["bundle_bytes"] = sum(file.stat().st_size for file in (self.folder / "bundle").iterdir())
        time.sleep((ROLLOUT.windows_before + 1) * self.registry.window_s)
        before = self.serving.cpu_s(), time.perf_counter(), self._sequences()
        with self.registry.writing() as connection:
            begin(connection, bundle, ROLLOUT, (), time.time(), self.registry.window_s)
        telling = {
            one for one, (_, fault) in self.devices.items() if fault not in SILENT | {"impossible sums", "replays"}
        }
        stages: dict[str, float] = {}
        while True:
            with self.registry.reading() as connection:
                (row,) = list_rollouts(connection)
                have = {one.id for one in list_devices(connection) if one.active == bundle}
            spent_s = time.perf_counter() - before[1]
            stages.setdefault(f"{row.state} {row.stage}", round(spent_s, 1))
            if row.state not in ("running", "complete") or telling <= have or time.monotonic() > self.until_s:
                break
            time.sleep(LOOK_S)
        self.figures |= {
            "rolled_out_s": spent_s,
            "rollout": row.state,
            "stages_s": stages,
            "have_bundle": len(have),
            "should_have": len(telling),
            "registry_rollout_cpu_s": self.serving.cpu_s() - before[0],
            "tellings": self._sequences() - before[2],
        }

    def _sequences(self) -> int:
        with self.registry.reading() as connection:
            return int(connection.exec_driver_sql("SELECT sum(sequence) FROM devices").scalar_one())

    def command(self, *words: str) -> None:
        """`autotailor fleet WORDS`, within the time that is left."""
        command = [sys.executable, "-m", "flows.cli", "fleet", *words, f"database={self.database}"]
        left_s = max(1.0, self.until_s - time.monotonic())
        with (self.folder / f"{words[0]}.log").open("w") as log:
            done = subprocess.run(
                command, stdout=log, stderr=log, cwd=self.folder, env=environment(), timeout=left_s, check=False
            )
        if done.returncode:
            raise SystemExit((self.folder / f"{words[0]}.log").read_text())


def play(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All figures of one fleet."""
    write_supernet(folder / "operators", options.operators)
    write_bundle(folder / "bundle")
    with ExitStack() as stack:
        start_s = time.perf_counter()
        played = Played(options, folder, stack)
        cpu_s = played.serving.cpu_s()
        fleet = played.enrol()
        played.figures["registry_enrol_cpu_s"] = played.serving.cpu_s() - cpu_s
        played.profile()
        played.roll_out()
        figures = played.figures | {
            "total_s": time.perf_counter() - start_s,
            "registry_peak_mib": played.serving.peak_mib(),
            "relay_peak_mib": played.relay.peak_mib(),
            "registry_cpu_s": played.serving.cpu_s(),
            "relay_cpu_s": played.relay.cpu_s(),
        }
        assert fleet.stdin is not None
        fleet.stdin.close()
        fleet.wait(120)
        told = json.loads((folder / "counts.json").read_text())
    return figures | {"device_failures": told["failures"], "counts": told["counts"]}


def rows_of(figures: dict[str, Any]) -> list[list[str]]:
    """What is shown."""
    count, found = figures["devices"], figures
    answers, pulls = found["counts"]["answers"], found["counts"]["pulls"]
    errors = [f"{found[name]:.1%}" for name in ("median_error", "p99_error", "largest_error")]
    load = found["load_average"][0]
    return [
        ["enrolled", f"{found['enrolled_s']:.1f} s, {count / found['enrolled_s']:.0f} a second"],
        ["profiled", f"{found['profiled_s']:.0f} s: {found['tables']} tables of {found['operators']} operators"],
        ["measurements", f"{found['measurements']:,}, {found['measurements'] / found['profiled_s']:.0f} a second"],
        ["requests through the relay", f"{answers:,}, {answers / found['profiled_s']:.0f} a second; {pulls:,} pulls"],
        ["found", f"{found['found']} of {found['to_find']}; false alarms: {found['false_alarms']} of {found['sound']}"],
        ["by fault", ", ".join(f"{name} {a}/{b}" for name, (a, b) in sorted(found["by_fault"].items()))],
        ["error of tables", "median {}, p99 {}, largest {}".format(*errors)],
        ["rolled out", f"{found['rolled_out_s']:.0f} s, {found['rollout']}: {found['stages_s']}"],
        ["have the bundle", f"{found['have_bundle']} of {count}; {found['should_have']} devices tell as they should"],
        ["tellings", f"{found['tellings']:,}, {found['tellings'] / found['rolled_out_s']:.0f} a second"],
        ["files fetched", f"{found['counts']['files']:,}, {found['counts']['bytes'] / MIB:.0f} MiB"],
        [
            "peak memory, registry",
            f"{found['registry_peak_mib']:.0f} MiB; at the start {found['registry_start_mib']:.0f}",
        ],
        ["peak memory, relay", f"{found['relay_peak_mib']:.0f} MiB; at the start {found['relay_start_mib']:.0f}"],
        ["CPU", f"registry {found['registry_cpu_s']:.0f} s, relay {found['relay_cpu_s']:.0f} s"],
        ["total", f"{found['total_s']:.0f} s, with a load average of {load:.1f} before"],
        *_of_ten_times(found),
    ]


def _of_ten_times(found: dict[str, Any]) -> list[list[str]]:
    """By multiplication."""
    ten, told = TEN_TIMES * found["devices"], max(1, found["tellings"])
    profile_s = {"relay": found["relay_profile_cpu_s"], "command": found["command_profile_cpu_s"]}
    slowest = max(profile_s, key=lambda name: profile_s[name])
    minutes = ", ".join(f"{name} {TEN_TIMES * spent_s / 60:.1f} min" for name, spent_s in profile_s.items())
    telling_s = found["registry_rollout_cpu_s"] / told
    memory_mib = found["relay_start_mib"] + TEN_TIMES * (found["relay_peak_mib"] - found["relay_start_mib"])
    return [
        [f"profiling {ten:,} devices", f"{minutes} of a core; bottleneck: {slowest}"],
        [
            f"telling, {ten:,} devices",
            f"{1e3 * telling_s:.1f} ms of the registry's core each, {ten * telling_s:.0f} s all",
        ],
        [f"memory of the relay, {ten:,} devices", f"{memory_mib:.0f} MiB"],
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--faulty", type=float, default=0.05)
    parser.add_argument("--operators", type=int, default=10_000, help="of the SuperNet, at most")
    parser.add_argument("--window-s", type=float, default=15.0)
    parser.add_argument("--limit-s", type=float, default=1500.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="autotailor-fleet-") as folder:
        figures = play(options, Path(folder))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    show(["what", "measured"], rows_of(figures), markdown=options.markdown)
    if figures["device_failures"]:
        raise SystemExit(f"devices were answered as they should not be: {figures['device_failures'][:3]}")


if __name__ == "__main__":
    main()
