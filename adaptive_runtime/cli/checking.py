"""`autotailor-runtime check`: compares the answers of this device with torch's answers in the bundle."""

import argparse
import json
from pathlib import Path

from adaptive_runtime.bundle.bundles import BUNDLE_FORMATS
from adaptive_runtime.model.opening import allowed_difference, check, load

HELP = "Compare the answers of this device with the calibration sample of a bundle."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("bundle", type=Path, help="folder with bundle.json")
    parser.add_argument(
        "--format",
        choices=BUNDLE_FORMATS,
        help="files that are run; default: all that were measured on the bundle's device",
    )
    parser.add_argument("--key-file", type=Path, help="secret with which the bundle must be signed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the differences there")


def run(arguments: argparse.Namespace) -> None:
    """Print the difference of every SubNet and exit. AdaptiveError: a SubNet differs by more than the bundle allows."""
    with load(arguments.bundle, format=arguments.format, key_file=arguments.key_file, prepares=False) as model:
        found, manifest, pool = check(model), model.pool.bundle.manifest, model.pool
    rows = []
    for one, difference in found.items():
        answerer = pool.answerer(one)
        allowed = allowed_difference(manifest, answerer.subnet, answerer.form)
        place = "" if one.exit is None else f" at {one.exit}"
        print(f"{one.files}{place}: {difference:.2g} (allowed {allowed:g})")
        of_format = {"format": answerer.form, "difference": difference, "allowed": allowed}
        rows.append({"subnet": one.digest, "exit": one.exit, **of_format})
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"differences": rows}), encoding="utf-8")
