"""`autotailor-runtime split`: answers inputs of a file with a SubNet that is split over devices, coordinated from here."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.devices import COORDINATOR
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.cli.serving import above_zero, add_devices, addresses
from profiling_agents.lines import printable

if TYPE_CHECKING:
    from adaptive_runtime.offload.split import SplitAnswer

HELP = "Answer inputs by a SubNet that is split over devices, and say where each segment ran and how long it took."
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
        help=f"for devices to load the segments (default {WAIT_S:g}); the coordinator stands in for those that are late",
    )
    add_devices(parser, required=True)


def run(arguments: argparse.Namespace) -> None:
    """Answer with the plan that is currently fastest. AdaptiveError: bad input, in one line."""
    from adaptive_runtime.offload.placed import PlannedSplit
    from adaptive_runtime.offload.split import ReplanRules, SplitOptions

    planned = PlannedSplit.open(arguments.folder)
    subnet = planned.split.subnet
    inputs = _inputs(arguments.input, subnet.shapes[subnet.input])
    options, at_once = SplitOptions(coding=arguments.coding), ReplanRules(margin=0.0, dwell_s=0.0)
    with planned.placed(addresses(arguments), options, at_once) as placed:
        network = placed.network
        network.wait_for(timeout_s=arguments.wait_s)
        links = {name: link.model_dump() for name, link in network.links.items()}
        devices = [
            {"name": name, "state": state, "reason": reason, "link": links.get(name)}
            for name, (state, reason) in network.states.items()
        ]
        answers = [network.infer(x, arguments.deadline_ms) for x in inputs]
        plan, plan_ms, coordinator_ms = placed.predicted
    described: dict[str, Any] = {"devices": devices, "plan": plan.devices, "line": plan.line}
    described |= {"plan_ms": plan_ms, "coordinator_ms": coordinator_ms, "answers": [_row(one) for one in answers]}
    for line in _lines(described):
        print(printable(line))
    if arguments.output is not None:
        try:
            with arguments.output.open("wb") as stream:
                np.save(stream, np.concatenate([one.answer for one in answers]))
        except OSError as error:
            raise AdaptiveError(str(arguments.output), f"cannot be written ({error.strerror})") from error
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(described, indent=1), encoding="utf-8")


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


def _row(answer: "SplitAnswer") -> dict[str, Any]:
    return {
        "latency_ms": answer.latency_ms,
        "late": answer.late,
        "on_coordinator": answer.on_coordinator,
        "largest": int(answer.answer.argmax()),
        "parts": [
            {
                "device": segment.device,
                "segments": [segment.first, segment.last],
                "took_ms": segment.took_ms,
                "computed_ms": segment.took_ms if segment.peer is None else segment.peer.computed_ms,
            }
            for segment in answer.segments
        ],
    }


def _lines(described: dict[str, Any]) -> Iterator[str]:
    """Report lines for people."""
    for one in described["devices"]:
        known, link = "", one["link"]
        if link is not None:
            known = f": {_mbps(link['up_mbps'])} up, {_mbps(link['down_mbps'])} down, round trip {link['round_trip_ms']:.3g} ms"
        yield f"{one['name']} is {one['state']} ({one['reason'] or 'not reached yet'}){known}"
    predicted = "a device is out" if described["plan_ms"] is None else f"predicted {described['plan_ms']:.4g} ms"
    yield f"plan: {described['line']} ({predicted}, the coordinator alone {described['coordinator_ms']:.4g} ms)"
    for number, row in enumerate(described["answers"]):
        late = ", late" if row["late"] else ""
        why = "" if row["on_coordinator"] is None else f", finished on the coordinator ({row['on_coordinator']})"
        yield f"answer {number}: {row['latency_ms']:.4g} ms{late}{why}; largest value at {row['largest']}"
        for part in row["parts"]:
            first, last = part["segments"]
            segments = f"segment {first}" if first == last else f"segments {first}–{last}"
            link_ms = part["took_ms"] - part["computed_ms"]
            crossed = f", of which computing {part['computed_ms']:.4g} ms, the way {link_ms:.4g} ms"
            crossed = "" if part["device"] == COORDINATOR else crossed
            yield f"  {part['device']}: {segments}, {part['took_ms']:.4g} ms{crossed}"


def _mbps(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g} Mbit/s" if value < 100 else f"{value:.0f} Mbit/s"
