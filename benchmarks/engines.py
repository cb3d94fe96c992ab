"""What each choice of a runtime's options costs or gains, and the engine that is chosen from them.

    python -m benchmarks.engines [--devices ncnn …] [--threads 1] [--rounds 4] [--subnets 1] [--work DIR] [--json FILE]
                                 [--markdown] [NETWORK@SIZE …]

For each network of timm (random weights, the space that is proposed for it) and each runtime: the largest SubNet, the smallest
and `--subnets` random ones under every choice beside the defaults, in one run; a ratio is the time with a choice over the time
without, the geometric mean over the SubNets of medians over the rounds. Then the engine as the stage "runtime_options"
chooses it, timed anew beside the defaults. DIR keeps the times; a second run goes on from there.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.bars import Terminal
from benchmarks.supernets import supernet_of
from benchmarks.tables import show
from profiling_agents.client import AgentClient, local_agent
from profiling_agents.messages import DEFAULT_ENGINE, Engine
from tailor_ir import SuperNet
from tasks.measuring.runtime_options.settings import Settings
from tasks.measuring.runtime_options.stage import TIMES_FILE, Descent, ModelsOfSubNets, OutputCheck
from tasks.measuring.runtime_options.timing import Comparison, EngineTimer, compare

NETWORKS = ("resnet18@32", "mobilenetv2_100@224", "deit_tiny_patch16_224@224")
DEVICES = ("ncnn", "onnxruntime")
TOLERANCE = 1e-4
Row = dict[str, Any]


def measure(net: SuperNet, client: AgentClient, settings: Settings, work: Path) -> Row:
    """Every choice beside the defaults, and the chosen engine."""
    work.mkdir(parents=True, exist_ok=True)
    device = client.capabilities()
    maker = ModelsOfSubNets(net, settings, device)
    jobs, failed = maker.timed()
    assert not failed, failed
    check = OutputCheck(client, maker.whole(tuple(jobs)), TOLERANCE, settings.seed)
    choices = {(one.name, choice) for one in device.engine_options for choice in one.choices if choice != one.default}
    with Terminal().bar("engines", (len(choices) + 2) * settings.rounds * len(jobs)) as bar:
        timer = EngineTimer(client, jobs, settings.measure, work / TIMES_FILE, bar)
        table = _every_choice(timer, sorted(choices), settings)
        table_s = timer.spent_s
        timer.spent_s = 0.0
        descent = Descent(settings, device.engine_options, timer, check.difference)
        chosen = descent.tuned(DEFAULT_ENGINE)
        gain = descent.beside(DEFAULT_ENGINE, chosen) if chosen.choices else None
    return {
        "choices": table,
        "chosen": chosen.choices,
        "ratio": _row(gain) if gain else None,
        "seconds": timer.spent_s,
        "table_seconds": table_s,
    }


def _every_choice(timer: EngineTimer, choices: Sequence[tuple[str, str]], settings: Settings) -> list[Row]:
    engines = {choice: Engine(choices=dict([choice])) for choice in choices}
    log_ratios: dict[str, dict[str, list[float]]] = {engine.text: {} for engine in engines.values()}
    failures: dict[str, str] = {}
    for number in range(settings.rounds):
        pairs = timer.pairs("every choice", number, DEFAULT_ENGINE, list(engines.values()))
        failures |= pairs.failures
        for text, found in pairs.log_ratios.items():
            for digest, value in found.items():
                log_ratios[text].setdefault(digest, []).append(value)
    return [
        {
            "option": option,
            "choice": choice,
            "reason": failures.get(engine.text),
            **(
                {}
                if engine.text in failures
                else _row(compare([np.array(one) for one in log_ratios[engine.text].values()], settings.seed))
            ),
        }
        for (option, choice), engine in engines.items()
    ]


def _row(found: Comparison) -> Row:
    return {"ratio": found.ratio, "low": found.low, "high": found.high, "largest": found.largest}


def _show(rows: Sequence[Row], markdown: bool) -> None:
    heads = ("network", "runtime", "choice", "time with it", "95 %", "largest SubNet")
    show(heads, [line for row in rows for line in _lines(row)], markdown=markdown)


def _lines(row: Row) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for one in row["choices"]:
        name = f"{one['option']}={one['choice']}"
        lines.append((row["network"], row["device"], name, *_cells(one)))
    chosen = " ".join(f"{name}={choice}" for name, choice in row["chosen"].items()) or "the defaults"
    lines.append((row["network"], row["device"], f"chosen in {row['seconds']:.0f} s: {chosen}", *_cells(row["ratio"])))
    return lines


def _cells(found: Row | None) -> tuple[str, str, str]:
    if found is None:
        return "1", "–", "1"
    if found.get("reason"):
        return "fails", str(found["reason"])[:40], "–"
    interval = "–" if found["low"] is None else f"{found['low']:.3f} to {found['high']:.3f}"
    return f"{found['ratio']:.3f}", interval, f"{found['largest']:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK@SIZE", default=NETWORKS)
    parser.add_argument("--devices", nargs="+", default=DEVICES, help="runtimes (ncnn onnxruntime)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument(
        "--subnets", type=int, default=1, help="random SubNets besides the largest and the smallest (1)"
    )
    parser.add_argument("--work", type=Path, metavar="DIR", help="times; a folder to go on from")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", action="store_true", help="print the table of the README")
    options = parser.parse_args()
    torch.set_num_threads(1)
    settings = Settings(rounds=options.rounds, random_subnets=options.subnets)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        for network in options.networks:
            net = supernet_of(network, num_classes=10)
            for device in options.devices:
                work = (options.work or Path(temporary)) / f"{network} {device} {options.threads}"
                with local_agent(device, options.threads) as client, client.lease():
                    rows.append({"network": network, "device": device, **measure(net, client, settings, work)})
                _show(rows[-1:], markdown=False)
    _show(rows, options.markdown)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
