"""The SubNets of baselines: uniformly shrunk, random, and found with MACs instead of latency."""

import numpy as np

from tailor_ir import KINDS, Space, SuperNet
from tasks.base.progress import Progress
from tasks.prediction.accuracy import AccuracyPredictor
from tasks.prediction.sums import mac_sums
from tasks.search.feasible import round_up
from tasks.search.methods import Genetic
from tasks.search.problem import Codes, Problem, uniform_codes, unique_rows
from tasks.search.settings import Settings as SearchSettings

MOST_DRAWS = 1000
"""Largest number of rounds of random draws; after these, no further different codes are assumed to exist."""


def uniform(space: Space) -> Codes:
    """Codes (n, V) in which all variables, or only all widths, share one relative level, at each resolution.

    These are width and resolution multipliers of a whole network. Source: MobileNets (arXiv:1704.04861) §3.3, 3.4.
    """
    multiplied = np.array([KINDS[variable.kind].uniform for variable in space.variables])
    resolutions = multiplied == "resolution"
    shrunk = np.concatenate([uniform_codes(space, mask) for mask in (~resolutions, multiplied == "width")])
    found = [shrunk]
    for column in np.flatnonzero(resolutions):
        for choice in range(int(space.cardinalities[column]) - 1):
            smaller = shrunk.copy()
            smaller[:, column] = choice
            found.append(smaller)
    return unique_rows(space.canonical_codes(np.concatenate(found)))


def random(space: Space, count: int, rng: np.random.Generator) -> Codes:
    """Different random codes (count, V); fewer if the space has no more."""
    wanted = min(count, space.distinct)
    found = np.zeros((0, len(space.variables)), np.int64)
    for _ in range(MOST_DRAWS):
        if len(found) >= wanted:
            break
        found = unique_rows(np.concatenate([found, space.random_codes(wanted - len(found), rng)]))
    return found


def by_macs(
    net: SuperNet, accuracy: AccuracyPredictor, settings: SearchSettings, count: int, progress: Progress
) -> Codes:
    """Codes (n, V) that the genetic search finds for `count` budgets of MACs, from the fewest to those of the best SubNet."""
    problem = Problem(net.space, mac_sums(net), accuracy)
    method = Genetic(problem, settings, np.random.default_rng(settings.seed))
    fewest, most = problem.evaluate(np.stack([method.quickest(), method.best()])).latency_ms.tolist()
    found = []
    with progress.bar("search by MACs", count) as bar:
        for macs in np.geomspace(fewest, max(fewest, most), count).tolist():
            found.append(method.winner(np.array([round_up(macs)])).code)
            bar.note(f"{macs:.3g} MACs")
            bar.advance()
    return unique_rows(np.stack(found))
