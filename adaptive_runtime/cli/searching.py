"""`autotailor-runtime search`: SubNets for the user's own images, from the segments of a bundle."""

import argparse
import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.local_search import BackgroundSearch, LocalSearchSettings
from profiling_agents.messages import one_line

HELP = "Search a SubNet for your own images on this device. A search that was ended goes on with the same command."
FOLDER = "search"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    fields = LocalSearchSettings.model_fields
    parser.add_argument("bundle", type=Path, help="folder with bundle.json and blocks.json")
    parser.add_argument(
        "--images",
        type=Path,
        required=True,
        help=".npz file with x and y, or a folder with x.npy and y.npy; y may lack",
    )
    parser.add_argument("--budget-ms", type=float, required=True, help="latency that the SubNet may have here")
    parser.add_argument("--folder", type=Path, help="state and results; default: 'search' in the bundle's folder")
    for name in ("range_share", "population", "generations", "patience", "seed"):
        default = fields[name].default
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=type(default), default=default, help=f"default {default}"
        )
    parser.add_argument(
        "--niceness", type=int, default=19, help="of the process that searches; 19: the lowest priority"
    )
    parser.add_argument("--key-file", type=Path, help="secret with which the bundle must be signed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the events of the search there")


def run(arguments: argparse.Namespace) -> None:
    """Search in a process of low priority, and print its progress. AdaptiveError in one line."""
    try:
        names = LocalSearchSettings.model_fields
        settings = LocalSearchSettings(**{name: getattr(arguments, name) for name in names})
    except ValidationError as error:
        raise AdaptiveError("search", one_line(error)) from error
    folder = arguments.folder or arguments.bundle / FOLDER
    events: list[dict[str, Any]] = []

    def tell(event: dict[str, Any]) -> None:
        events.append(event)
        if line := _line(event):
            print(line, flush=True)

    with BackgroundSearch(
        bundle=arguments.bundle,
        images=arguments.images,
        folder=folder,
        settings=settings,
        tell=tell,
        key_file=arguments.key_file,
        niceness=arguments.niceness,
    ) as search:
        search.wait()
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(events), encoding="utf-8")


def _line(event: dict[str, Any]) -> str:
    match event:
        case {"event": "latencies", "segments": segments, "took_s": took_s}:
            return f"latencies of {segments} segments, measured in {took_s:.1f} s"
        case {"event": "generation", "number": number, "of": of, "evaluated": evaluated, "saved": saved}:
            best = "none within the budget yet"
            if event["accuracy"] is not None:
                best = f"best {100 * event['accuracy']:.2f} % at {event['latency_ms']:.3g} ms"
            return f"generation {number} of {of}: {evaluated} SubNets, {best}; prefixes save {100 * saved:.0f} %"
        case {"event": "found", "file": file}:
            return f"found: {file}; serve them by load(…, also='{Path(file).parent}')"
    return ""
