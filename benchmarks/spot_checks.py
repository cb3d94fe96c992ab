"""How often `autotailor fleet profile` calls a sound device an outlier, and how often it finds one that is slower.

    python -m benchmarks.spot_checks [--devices 20000] [--markdown]

Simulation: devices of one kind differ by 5 %, measurements by 4 % (standard deviations of logarithms), and beside 3 % of the
measurements something else runs, which makes them 1.3 to 3 times as long. Each row has devices that take some times as long as
their kind. A check has eight operators; `tasks.operations.fleet.profiling` judges with its default settings. Intervals are
exact, 95 %.
"""

import argparse

import numpy as np

from benchmarks.rollout import interval
from benchmarks.tables import show
from benchmarks.thin_devices import BETWEEN, DISTURBED, NOISE
from profiling_agents.messages import Measurement, Timing
from tasks.operations.fleet.profiling import judge
from tasks.operations.fleet.settings import FleetProfileSettings

FACTORS = (0.6, 0.75, 1.0, 1.15, 1.25, 1.3, 1.4, 1.6, 2.0)
CHECKS = 2


def found(factor: float, devices: int, settings: FleetProfileSettings, rng: np.random.Generator) -> tuple[int, int]:
    """Devices that one check calls outliers, and that both do."""
    shape = (devices, CHECKS, settings.spot_operators)
    own = factor * np.exp(BETWEEN * rng.normal(size=(devices, 1, 1)))
    disturbed = np.where(rng.random(shape) < DISTURBED, rng.uniform(1.3, 3.0, shape), 1.0)
    times_ms = own * np.exp(NOISE * rng.normal(size=shape)) * disturbed
    known = {str(at): 1.0 for at in range(settings.spot_operators)}
    odd = np.array([[_is_odd(row, known, settings) for row in device] for device in times_ms.tolist()])
    return int(odd[:, 0].sum()), int(odd.all(1).sum())


def _is_odd(times_ms: list[float], known: dict[str, float], settings: FleetProfileSettings) -> bool:
    timings = (Timing(p50_ms=ms, p90_ms=ms, spread=0.0, n=20, repeats=1, noisy=False) for ms in times_ms)
    told = [Measurement.ok(str(at), timing) for at, timing in enumerate(timings)]
    return judge("", told, known, settings).state == "outlier"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=20_000)
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    settings, rng, rows = FleetProfileSettings(), np.random.default_rng(0), []
    for factor in FACTORS:
        one, both = found(factor, options.devices, settings, rng)
        low, high = interval(both, options.devices)
        shares = f"{one / options.devices:.2%}", f"{both / options.devices:.2%} ({low:.2%} to {high:.2%})"
        rows.append([f"{factor:g}", *shares])
    show(["times as long as its kind", "outliers by one check", "outliers by both"], rows, markdown=options.markdown)


if __name__ == "__main__":
    main()
