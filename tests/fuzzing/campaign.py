"""Many seeds: what came of each, and a report of the kinds of faults."""

import signal
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType

from tests.fuzzing.checks import NoReference, Outcome, examine
from tests.fuzzing.drawing import draw
from tests.fuzzing.networks import Network
from tests.fuzzing.shrinking import shrink

MOST_SECONDS = 120
"""One network takes less than a second; one that takes so long never ends."""
SHOWN_SEEDS = 12


@dataclass(frozen=True, slots=True)
class Result:
    """state: compiled, refused, no reference, or fault."""

    seed: int
    state: str
    kind: str = ""
    text: str = ""
    operators: frozenset[str] = frozenset()
    subnets: int = 0


def run_seed(seed: int, modules: bool = False) -> Result:
    """All checks of the network of one seed."""
    try:
        outcome = _timed(seed if modules else draw(seed), seed)
    except NoReference as error:
        return Result(seed, "no reference", text=str(error))
    if outcome.faults:
        fault = outcome.faults[0]
        return Result(seed, "fault", fault.kind, fault.text)
    if outcome.refused:
        return Result(seed, "refused", text=outcome.refused)
    return Result(seed, "compiled", operators=outcome.operators, subnets=outcome.subnets)


def _timed(network: Network | int, seed: int) -> Outcome:
    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"more than {MOST_SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(MOST_SECONDS)
    try:
        return examine(network, seed)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def smallest(seed: int, kind: str, seconds: float = 90.0) -> Network:
    """A small network with a fault of the same kind as that of a seed."""

    def keeps(network: Network) -> bool:
        return any(fault.kind == kind for fault in examine(network, seed).faults)

    return shrink(draw(seed), keeps, seconds)


def report_of(results: Sequence[Result], shrunk: int = 0) -> tuple[str, int]:
    """Lines about states, faults by kind and refusals by their words, and the number of faults."""
    states: dict[str, int] = defaultdict(int)
    faults: dict[str, list[Result]] = defaultdict(list)
    refusals: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        states[result.state] += 1
        if result.state == "fault":
            faults[result.kind].append(result)
        if result.state == "refused":
            refusals[_without_names(result.text)].append(result)
    lines = [", ".join(f"{state}: {count}" for state, count in sorted(states.items()))]
    ordered = sorted(faults.items(), key=lambda item: -len(item[1]))
    for kind, found in ordered:
        lines.append(f"{len(found):5d}  {kind}   seeds {[one.seed for one in found[:SHOWN_SEEDS]]}")
        lines.append(f"       {found[0].text.strip().splitlines()[-1][:300]}")
    lines.append("refused:")
    for _, found in sorted(refusals.items(), key=lambda item: -len(item[1])):
        lines.append(f"{len(found):5d}  seeds {[one.seed for one in found[:4]]}: {found[0].text[:200]}")
    for kind, found in ordered[:shrunk]:
        lines += ["", f"# {kind}, seed {found[0].seed}", smallest(found[0].seed, kind).text()]
    return "\n".join(lines), sum(map(len, faults.values()))


def _without_names(line: str) -> str:
    """The words of a refusal up to what is allowed."""
    return "".join(line.split("; allowed")[0].split("'")[::2]).translate(str.maketrans("", "", "0123456789"))
