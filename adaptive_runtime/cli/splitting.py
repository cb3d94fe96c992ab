"""`autotailor-runtime split`: answers inputs of a file with a SubNet that is split over devices, coordinated from here."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.cli.serving import above_zero, add_devices, addresses
from profiling_agents.lines import printable

if TYPE_CHECKING:
    from adaptive_runtime.offload.split import EnvelopePlacements, SplitAnswer, SplitNetwork

HELP = "Answer inputs by a SubNet that is split over devices, and tell where each part ran and how long it took."
WAIT_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("folder", type=Path, help="of `autotailor partition … partition.plans=FOLDER`")
    parser.add_argument(
        "input", type=Path, help=".npy file, float32: one input, or several (N, …), one after the other"
    )
    parser.add_argument("--output", type=Path, metavar="F", help="write the answers there (.npy)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write plan, links and times there")
    parser.add_argument(
        "--deadline-ms", type=above_zero, default=1000.0, metavar="MS", help="of each input (default 1000)"
    )
    parser.add_argument(
        "--wait-s",
        type=above_zero,
        default=WAIT_S,
        metavar="S",
        help=f"for devices to load the segments (default {WAIT_S:g}); home stands in for those that are not there by then",
    )
    add_devices(parser, required=True)


def run(arguments: argparse.Namespace) -> None:
    """Answer with the plan that is currently fastest. AdaptiveError: bad input, in one line."""
    from adaptive_runtime.offload.split import PlannedSplit, ReplanRules, SplitOptions

    planned = PlannedSplit.open(arguments.folder)
    subnet = planned.split.subnet
    inputs = _inputs(arguments.input, subnet.shapes[subnet.input])
    at_once = ReplanRules(margin=0.0, dwell_s=0.0)
    network, choice = planned.network(addresses(arguments), SplitOptions(coding=arguments.coding), at_once)
    with network:
        network.wait_for(timeout_s=arguments.wait_s)
        devices = _devices(network)
        answers = [network.infer(x, arguments.deadline_ms) for x in inputs]
        plans_ms = _predicted(network, choice)
    rows = [_row(one) for one in answers]
    for line in _lines(devices, plans_ms, rows):
        print(printable(line))
    if arguments.output is not None:
        _write_answers(arguments.output, np.concatenate([one.answer for one in answers]))
    if arguments.json is not None:
        told = {"devices": devices, **plans_ms, "answers": rows}
        arguments.json.write_text(json.dumps(told, indent=1), encoding="utf-8")


def _inputs(file: Path, shape: tuple[int, ...]) -> list[NDArray[np.float32]]:
    """The inputs in the file, one or several of this shape. AdaptiveError: other content."""
    try:
        found = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise AdaptiveError(str(file), f"cannot be read as .npy ({error})") from error
    sample = shape[1:] if shape and shape[0] == 1 else shape
    if not isinstance(found, np.ndarray) or found.dtype != np.float32 or found.size == 0:
        raise AdaptiveError(str(file), "is no array of float32", allowed=f"a .npy file of float32 {list(shape)}")
    if found.shape in (shape, sample):
        return [found.reshape(shape)]
    if found.shape[1:] in (shape, sample):
        return [one.reshape(shape) for one in found]
    sizes = ", ".join(map(str, sample))
    raise AdaptiveError(str(file), f"has the shape {list(found.shape)}", allowed=f"[{sizes}] or [N, {sizes}]")


def _devices(network: "SplitNetwork") -> list[dict[str, Any]]:
    """State and link of each device."""
    links = network.links
    return [
        {"name": name, "state": state, "reason": reason, "link": links[name].model_dump() if name in links else None}
        for name, (state, reason) in network.states.items()
    ]


def _predicted(network: "SplitNetwork", choice: "EnvelopePlacements") -> dict[str, Any]:
    """The plan in use, its predicted latency, and that of the coordinator alone."""
    found_ms = choice.latencies_ms(network.links)
    plan = choice.plans.plans[choice.number]
    return {"plan": plan.devices, "line": plan.line, "plan_ms": found_ms.get(choice.number), "home_ms": found_ms[0]}


def _row(answer: "SplitAnswer") -> dict[str, Any]:
    return {
        "latency_ms": answer.latency_ms,
        "late": answer.late,
        "at_home": answer.at_home,
        "largest": int(answer.answer.argmax()),
        "parts": [
            {
                "device": leg.device,
                "segments": [leg.first, leg.last],
                "took_ms": leg.took_ms,
                "computed_ms": leg.took_ms if leg.peer is None else leg.peer.computed_ms,
            }
            for leg in answer.legs
        ],
    }


def _lines(devices: list[dict[str, Any]], plan: dict[str, Any], rows: list[dict[str, Any]]) -> list[str]:
    """Report lines for people."""
    found = []
    for one in devices:
        link = one["link"]
        known = "" if link is None else f": {_mbps(link['up_mbps'])} up, {_mbps(link['down_mbps'])} down, "
        known += "" if link is None else f"round trip {link['round_trip_ms']:.3g} ms"
        found.append(f"{one['name']} is {one['state']} ({one['reason'] or 'not reached yet'}){known}")
    predicted = "a device is out" if plan["plan_ms"] is None else f"predicted {plan['plan_ms']:.4g} ms"
    found.append(f"plan: {plan['line']} ({predicted}, home alone {plan['home_ms']:.4g} ms)")
    for number, row in enumerate(rows):
        late = ", late" if row["late"] else ""
        why = "" if row["at_home"] is None else f", finished at home ({row['at_home']})"
        found.append(f"answer {number}: {row['latency_ms']:.4g} ms{late}{why}; largest value at {row['largest']}")
        for part in row["parts"]:
            first, last = part["segments"]
            segments = f"segment {first}" if first == last else f"segments {first}–{last}"
            link_ms = part["took_ms"] - part["computed_ms"]
            crossed = f", of which computing {part['computed_ms']:.4g} ms, the way {link_ms:.4g} ms"
            way = "" if part["device"] == "home" else crossed
            found.append(f"  {part['device']}: {segments}, {part['took_ms']:.4g} ms{way}")
    return found


def _mbps(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g} Mbit/s" if value < 100 else f"{value:.0f} Mbit/s"


def _write_answers(file: Path, answers: NDArray[np.float32]) -> None:
    """Write the answers. AdaptiveError: the file cannot be written."""
    try:
        with file.open("wb") as stream:
            np.save(stream, answers)
    except OSError as error:
        raise AdaptiveError(str(file), f"cannot be written ({error.strerror})") from error
