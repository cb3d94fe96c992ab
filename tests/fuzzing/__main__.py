"""python -m tests.fuzzing --from 0 --count 20000 --processes 2: many seeds, and a summary of the faults by kind."""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import islice

from tests.fuzzing.campaign import Result, report_of, run_seed


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 where a fault was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing", description=__doc__)
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1000, help="how many seeds")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--shrink", type=int, default=0, help="repros of so many kinds, the most frequent first")
    parser.add_argument("--modules", action="store_true", help="torch modules in the place of ONNX graphs")
    given = parser.parse_args(arguments)
    progress = Progress(given.count)
    seeds = range(given.first, given.first + given.count)
    for result in _results(seeds, given.processes, given.modules):
        progress.add(result)
    sys.stderr.write("\n")
    text, faults = report_of(progress.results, shrunk=given.shrink)
    print(text)
    return 1 if faults else 0


def _results(seeds: range, processes: int, modules: bool) -> Iterator[Result]:
    if processes <= 1:
        yield from (run_seed(seed, modules) for seed in seeds)
        return
    with ProcessPoolExecutor(processes) as pool:
        pending = iter(seeds)
        while block := list(islice(pending, 50 * processes)):
            yield from pool.map(run_seed, block, [modules] * len(block), chunksize=5)


@dataclass(slots=True)
class Progress:
    """One line on the terminal."""

    count: int
    results: list[Result] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)

    def add(self, result: Result) -> None:
        if result.state == "fault" and result.kind not in {each.kind for each in self.results}:
            sys.stderr.write(f"\nseed {result.seed}: {result.kind}\n")
        self.results.append(result)
        if len(self.results) % 20 and len(self.results) != self.count:
            return
        states = Counter(each.state for each in self.results)
        told = ", ".join(f"{state} {count}" for state, count in sorted(states.items()))
        sys.stderr.write(f"\r{len(self.results)} of {self.count}, {time.monotonic() - self.begun:.0f} s: {told}   ")
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
