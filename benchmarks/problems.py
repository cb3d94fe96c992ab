"""One network of each learning problem, from random weights to checked files: what comes of whole runs of presets.

    python -m benchmarks.problems [--presets sound_events motion …] [--work DIR] [--json problems.json] [--markdown] [OVERRIDE…]

Each preset is run by `autotailor run` into a folder of its own in --work; a run that was ended goes on, and what is in the
file of --json is not run again. OVERRIDE: of all runs. A row for each device. *Base*: the network that the SuperNet is made
of, on test samples and on the device with its best engine choices. *Smallest*: the fastest exported SubNet whose score on test
samples is at least 90 % of the base network's. *Points*: SubNets on the measured front.

Bars: at least 8 points; all winners within their budget; files within 1e-4 of torch; the smallest takes at most 40 % of the
base network's latency; 10 minutes a run.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adaptive_runtime.base.files import replace_file
from benchmarks.tables import show

PRESETS = (
    *("demo", "sound_events", "motion", "texts", "image_and_motion"),
    *("ssdlite_scenes", "fcos_scenes", "lraspp_scenes", "denoising", "super_resolution"),
)
LEAST_POINTS, MOST_OFF, KEPT_SCORE, MOST_SHARE, MOST_MINUTES = 8, 1e-4, 0.9, 0.4, 10.0
HEADS = (
    "preset",
    "score",
    "device",
    "base",
    "largest",
    "base, ms",
    "smallest",
    "smallest, ms",
    "of the base",
    "points",
    "within budget",
    "off torch",
    "minutes",
)
Row = dict[str, Any]


def ran(preset: str, work: Path, overrides: Sequence[str]) -> list[Row]:
    """The rows of one preset, one for each device."""
    output, result = work / preset, work / f"{preset}.json"
    words = ["run", f"+preset={preset}", f"output_dir={output}", *overrides, "--json", str(result)]
    begin_s = time.monotonic()
    subprocess.run([sys.executable, "-m", "flows.cli", *words], check=True)
    minutes = (time.monotonic() - begin_s) / 60
    report = json.loads(result.read_text())
    return [row_of(preset, report, device, minutes) for device in report["devices"]]


def row_of(preset: str, report: Row, device: Row, minutes: float) -> Row:
    """What a run found for one device."""
    scores = report["accuracies"]
    base, base_ms = scores["base model, test"], device["base"]["measured_ms"]
    good = [row for row in device["winners"] if (row["accuracy"] or 0.0) >= KEPT_SCORE * base]
    smallest = min(good, key=lambda row: row["measured_ms"], default=None)
    return {
        "preset": preset,
        "score": report["metric"],
        "device": device["name"],
        "base": base,
        "largest": scores["largest SubNet, test"],
        "base_ms": base_ms,
        "smallest": smallest and smallest["accuracy"],
        "smallest_ms": smallest and smallest["measured_ms"],
        "points": len({row["digest"] for row in device["winners"] if row["on_front"]}),
        "winners": len(device["winners"]),
        "within": sum(row["within_budget"] is True for row in device["winners"]),
        "off_torch": max(row["max_difference"] for row in device["winners"]),
        "minutes": minutes,
    }


def cells(row: Row) -> list[str]:
    """A line of the table."""
    found = row["smallest"] is not None
    return [
        row["preset"],
        row["score"],
        row["device"],
        f"{row['base']:.1%}",
        f"{row['largest']:.1%}",
        f"{row['base_ms']:.3f}",
        f"{row['smallest']:.1%}" if found else "none",
        f"{row['smallest_ms']:.3f}" if found else "–",
        f"{share(row):.2f}" if found else "–",
        str(row["points"]),
        f"{row['within']} of {row['winners']}",
        f"{row['off_torch']:.0e}",
        f"{row['minutes']:.1f}",
    ]


def share(row: Row) -> float:
    """Of the base network's latency that the smallest good SubNet takes."""
    return float("inf") if row["smallest_ms"] is None else float(row["smallest_ms"] / row["base_ms"])


def bars(rows: Sequence[Row]) -> list[tuple[str, bool]]:
    """A line for each bar, and whether it is kept."""
    worst = max(rows, key=share)
    return [
        (
            f"points on a front: {min(row['points'] for row in rows)}",
            all(row["points"] >= LEAST_POINTS for row in rows),
        ),
        ("winners within their budget", all(row["within"] == row["winners"] for row in rows)),
        ("files as torch", all(row["off_torch"] <= MOST_OFF for row in rows)),
        (
            f"of the base's latency, {worst['preset']} on {worst['device']}: {share(worst):.2f}",
            share(worst) <= MOST_SHARE,
        ),
        (f"minutes: {max(row['minutes'] for row in rows):.1f}", all(row["minutes"] <= MOST_MINUTES for row in rows)),
    ]


def main() -> None:
    """Run what is missing, print the table, and end with 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", default=PRESETS, choices=PRESETS)
    parser.add_argument("--work", type=Path, default=Path("problems"))
    parser.add_argument("--json", type=Path, default=Path("problems.json"))
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE")
    options = parser.parse_args()
    rows: list[Row] = json.loads(options.json.read_text()) if options.json.exists() else []
    options.work.mkdir(parents=True, exist_ok=True)
    for preset in options.presets:
        if not any(row["preset"] == preset for row in rows):
            rows += ran(preset, options.work, options.overrides)
            replace_file(options.json, json.dumps(rows, indent=1))
    show(HEADS, [cells(row) for row in rows], markdown=options.markdown, width=200)
    found = bars(rows)
    for line, kept in found:
        print(f"{line}: {'yes' if kept else 'NO'}")
    sys.exit(0 if all(kept for _, kept in found) else 1)


if __name__ == "__main__":
    main()
