"""Is the forecast of a device's load better than "as now"?

    python -m benchmarks.forecast record DIR [--seconds 120] [--only "CPU periodic"] [--cpus 0.4]
    python -m benchmarks.forecast compare DIR [--markdown] [--json FILE]

`record` samples this machine's state once a second while real processes of `benchmarks.stress` run, and saves one file of
`SensedState` lines for each pattern. `compare` goes through these and through five signals from stated generators, a value a
second. It prints mean absolute errors in points (hundredths of the signal's range), for each horizon: of "as now", of the
autoregressive model alone, and of what `Forecaster` used; and the share of steps at which it used the model. All steps from the
second value on count, so the time in which the model knows nothing is in it.

A recorded trace has two signals: the load index of CPU and memory, and the demand for CPUs, r / (r + c) with r tasks that run
or wait for c usable CPUs. The load index says nothing more once all CPUs are used; demand still does. With `--cpus` (root and
control groups of version 1) recording and stress run in a group that may use so many CPUs, like a container; the signal is then
the use of that quota.

Bar: on no trace worse than "as now" by more than 5 %; better where the signal has a pattern.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.state.forecast import Autoregression, Forecaster
from adaptive_runtime.state.sensing import SensedState, Sensing, load_index
from benchmarks.control_group import in_group
from benchmarks.stress import PATTERNS, stress
from benchmarks.tables import show

HORIZONS = (1, 2, 3, 5)
FAR = max(HORIZONS)
ORDER = 8
METHODS = ("as now", "autoregressive", "used")
HEADS = ("trace", "horizon, s", "as now", "autoregressive", "used", "used against as now", "model used")
WORSE = 1.05
LENGTH = 600
SEED = 7
Signal = NDArray[np.float64]


def autoregressive(rng: np.random.Generator) -> Signal:
    """x = 1.5 x' − 0.8 x'' + noise of 0.04, around 0.5: a damped oscillation of about 11 s."""
    values = np.zeros(LENGTH)
    for now in range(2, LENGTH):
        values[now] = 1.5 * values[now - 1] - 0.8 * values[now - 2] + 0.04 * rng.normal()
    return values + 0.5


def walk(rng: np.random.Generator) -> Signal:
    """A random walk with steps of 0.03: nothing is better than as now."""
    return 0.5 + np.cumsum(0.03 * rng.normal(size=LENGTH))


def on_off(rng: np.random.Generator) -> Signal:
    """0.15 or 0.85 for exponential times of 15 s on average, noise of 0.03."""
    lengths = 2 + rng.exponential(15, LENGTH).astype(int)
    values = np.repeat(np.arange(LENGTH) % 2, lengths)[:LENGTH]
    return 0.15 + 0.7 * values + 0.03 * rng.normal(size=LENGTH)


def waves(rng: np.random.Generator) -> Signal:
    """A sine of 23 s and 0.4, noise of 0.03."""
    return 0.5 + 0.4 * np.sin(2 * np.pi * np.arange(LENGTH) / 23) + 0.03 * rng.normal(size=LENGTH)


def noise(rng: np.random.Generator) -> Signal:
    """Independent values around 0.5, deviation 0.1."""
    return 0.5 + 0.1 * rng.normal(size=LENGTH)


GENERATORS: tuple[Callable[[np.random.Generator], Signal], ...] = (autoregressive, walk, on_off, waves, noise)


def demand(state: SensedState) -> float | None:
    """Tasks that run or wait for each usable CPU, as r / (r + 1)."""
    if state.runnable is None or not state.usable_cpus:
        return None
    return state.runnable / (state.runnable + state.usable_cpus)


def quota(state: SensedState) -> float | None:
    """Use of the control group's quota."""
    return None if state.group_cpu_use is None else min(1.0, state.group_cpu_use)


Read = Callable[[SensedState], float | None]
SIGNALS: dict[str, Read] = {"load index": load_index, "demand": demand}
SIGNALS_OF_A_GROUP: dict[str, Read] = {"quota": quota}


def record(folder: Path, seconds: float, only: str | None, cpus: float | None) -> None:
    """One file for each pattern."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (kind, pattern) in PATTERNS.items():
        if only in (None, name):
            with in_group(cpus), stress(kind, pattern, SEED):
                lines = sampled(seconds)
            where = "" if cpus is None else "_in_a_group"
            (folder / f"{name.replace(' ', '_')}{where}.jsonl").write_text("\n".join(lines) + "\n")
            print(f"{name}: {len(lines)} samples", flush=True)


def sampled(seconds: float) -> list[str]:
    """The states of the device, once a second, as JSON."""
    sensing = Sensing()
    lines = []
    start_s = time.monotonic()
    for count in range(1, int(seconds) + 1):
        time.sleep(max(0.0, start_s + count - time.monotonic()))
        lines.append(sensing.sample().model_dump_json(exclude_none=True))
    sensing.stop()
    return lines


def recorded(folder: Path) -> dict[str, list[float | None]]:
    """The signals of all recorded traces."""
    found: dict[str, list[float | None]] = {}
    for file in sorted(folder.glob("*.jsonl")):
        states = [SensedState.model_validate_json(line) for line in file.read_text().splitlines()]
        in_a_group = any(state.group_cpu_use is not None for state in states)
        for name, signal in (SIGNALS_OF_A_GROUP if in_a_group else SIGNALS).items():
            found[f"{file.stem.replace('_', ' ')}, {name}"] = [signal(state) for state in states]
    return found


def compared(name: str, values: list[float | None]) -> list[dict[str, Any]]:
    """Errors at each horizon."""
    forecaster, model = Forecaster(horizons=FAR), Autoregression(FAR, ORDER)
    made: list[dict[str, Signal]] = []
    for value in values:
        forecast = forecaster.observe(value)
        if value is None or forecast is None:
            model.interrupt()
            made.append({})
            continue
        model.observe(value)
        modelled_H, as_now_H = model.forecast(), np.full(FAR, value)
        made.append(
            {
                "as now": as_now_H,
                "autoregressive": as_now_H if modelled_H is None else modelled_H,
                "used": forecast.values_H,
                "share": np.array([method == "autoregressive" for method in forecast.methods], np.float64),
            }
        )
    return [{"trace": name, "horizon_s": horizon} | errors(made, values, horizon) for horizon in HORIZONS]


def errors(made: list[dict[str, Signal]], values: list[float | None], horizon: int) -> dict[str, float]:
    """Mean absolute errors of each method at one horizon, and the share of steps at which the model was used."""
    pairs = [(made[at - horizon], value) for at, value in enumerate(values) if at >= horizon and value is not None]
    known = [(forecasts, value) for forecasts, value in pairs if forecasts]
    found = {
        method: float(np.mean([abs(forecasts[method][horizon - 1] - value) for forecasts, value in known]))
        for method in METHODS
    }
    return found | {"share": float(np.mean([forecasts["share"][horizon - 1] for forecasts, _ in known]))}


def cells(row: dict[str, Any]) -> list[str]:
    """One line of the table."""
    change = row["used"] / row["as now"] - 1 if row["as now"] else 0.0
    points = [f"{100 * row[method]:.1f}" for method in METHODS]
    return [row["trace"], str(row["horizon_s"]), *points, f"{change:+.0%}", f"{row['share']:.0%}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--only", choices=list(PATTERNS))
    parser.add_argument("--cpus", type=float)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.what == "record":
        record(options.folder, options.seconds, options.only, options.cpus)
        return
    traces = recorded(options.folder)
    for generator in GENERATORS:
        traces[generator.__name__] = list(generator(np.random.default_rng(SEED)))
    rows = [row for name, values in traces.items() for row in compared(name, values)]
    show(HEADS, [cells(row) for row in rows], markdown=options.markdown)
    lost = [row for row in rows if row["used"] > WORSE * row["as now"]]
    print(f"worse than as now by more than {WORSE - 1:.0%}: {len(lost)} of {len(rows)}; bar: none")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
