"""The command line, `autotailor`: it composes and validates first, and imports heavy libraries for valid commands only."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

ROOMS = ("adaptive_runtime", "conf", "profiling_agents", "importing", "solvers", "tailor_ir", "tasks")
BAD_INPUT = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0, 2 with one line for bad input, 3 after a night that regressed, 130 after Ctrl-C, 143 after SIGTERM."""
    if hidden := _hidden():
        print(f"autotailor: {hidden}", file=sys.stderr)
        return BAD_INPUT
    from flows.cli.entry import main as entry

    return entry(argv)


def _hidden() -> str | None:
    """A line about a foreign package that Python finds instead of the project's own; None if there is none."""
    home = Path(__file__).resolve().parents[2]
    for room in ROOMS:
        spec = find_spec(room)
        places = [Path(place).resolve() for place in (spec and spec.submodule_search_locations) or ()]
        if home / room not in places:
            found = str(places[0]) if places else str(spec and spec.origin)
            return (
                f"PYTHONPATH: '{found}' hides AutoTailor's package '{room}'; take its folder off PYTHONPATH: networks are "
                "found in the working folder, and by their file (model.name=FILE.py:function)"
            )
    return None
