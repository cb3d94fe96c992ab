"""The presets of published spaces of alternatives: their counts, by formula and by going through all SubNets."""

from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks.elastic import compiled
from tailor_ir.spaces.selectors import Config
from tests.support import long


def tilings(blocks: int, single: int) -> int:
    """Ways to tile a row of blocks with merges of 2 and 3, and `single` forms of each block (`facts`: AdaptiveNet's space)."""
    counts = [1]
    for n in range(1, blocks + 1):
        counts.append(single * counts[n - 1] + sum(counts[n - k] for k in (2, 3) if n >= k))
    return counts[blocks]


def merges(names: list[str]) -> Iterator[Config]:
    """A config for each way to tile a row of blocks with merges of 2 and 3: choices of the last block of each tile."""
    if not names:
        yield {}
        return
    for length in range(1, min(3, len(names)) + 1):
        choice = {names[-1]: f"merged_{length}"} if length > 1 else {}
        for before in merges(names[:-length]):
            yield {**before, **choice}


def test_the_formula_has_the_published_counts() -> None:
    assert tilings(16, 1) == 10_609
    assert tilings(16, 3) == 258_371_689
    assert f"{tilings(33, 3):.2e}" == "2.57e+17"


@pytest.mark.long
@pytest.mark.parametrize(
    ("preset", "count"),
    [("adaptivenet_mobilenetv2", tilings(16, 3)), long("adaptivenet_resnet101", tilings(33, 3)), ("adascale", 480)],
)
def test_a_preset_has_the_count_of_its_paper(preset: str, count: int) -> None:
    assert compiled(preset).space.distinct == count


@pytest.mark.long
def test_each_of_the_10_609_subnets_is_there_once() -> None:
    space = compiled("adaptivenet_resnet50").space
    stages = ((1, 3), (2, 4), (3, 6), (4, 3))
    names = [f"stage.{stage}.block.{block}.block" for stage, blocks in stages for block in range(1, blocks + 1)]
    assert names[1:] == [variable.name for variable in space.variables]
    codes = space.encode(merges(names))
    canonical = np.unique(space.canonical_codes(codes), axis=0)
    assert len(codes) == len(canonical) == space.distinct == tilings(16, 1)
    random = space.random_codes(50_000, np.random.default_rng(0))
    assert len(np.unique(np.concatenate([canonical, random]), axis=0)) == len(canonical)
