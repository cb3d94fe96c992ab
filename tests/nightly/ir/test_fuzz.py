"""Many random networks of all operators, and of modules; `python -m tests.fuzzing` runs more, and shrinks what it finds."""

import pytest

from tailor_ir.ops import OPERATORS
from tests.fuzzing.campaign import Result, report_of, run_seed

COUNT, CHUNK = 5000, 100
MODULES = 200
FIRST = 10_000
"""Seeds before it are the unit tier's, and those of whoever looks for faults by hand."""
SEEN: set[str] = set()


def told(results: list[Result]) -> str:
    """The report of a chunk with faults; "" where there are none."""
    text, faults = report_of(results, shrunk=3)
    return text if faults else ""


@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, CHUNK))
def test_random_graphs_have_no_fault(first: int) -> None:
    results = [run_seed(seed) for seed in range(first, first + CHUNK)]
    SEEN.update(*(result.operators for result in results))
    assert not told(results)


@pytest.mark.parametrize("first", range(FIRST, FIRST + MODULES, CHUNK // 2))
def test_random_modules_have_no_fault(first: int) -> None:
    assert not told([run_seed(seed, modules=True) for seed in range(first, first + CHUNK // 2)])


def test_every_operator_was_in_a_compiled_network() -> None:
    """Of the graphs above; alone, it draws what it needs."""
    seed = FIRST
    while OPERATORS.keys() - SEEN and seed < FIRST + COUNT:
        SEEN.update(run_seed(seed).operators)
        seed += 1
    assert not OPERATORS.keys() - SEEN
