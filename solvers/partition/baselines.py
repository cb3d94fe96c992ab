"""Plans of other methods, as baselines for the exact ones. Each is priced by the model of `solvers.partition.problem`."""

from collections.abc import Iterable, Iterator

from solvers.partition.conditions import PartitionConditions
from solvers.partition.minimum_cut import minimum_cut
from solvers.partition.plan import PartitionPlan, plan_of, stays
from solvers.partition.problem import PartitionProblem


def all_at_home(problem: PartitionProblem, conditions: PartitionConditions) -> PartitionPlan:
    """The plan in which the coordinator runs all steps, so that nothing is sent."""
    return _cut(problem, conditions, problem.home, problem.dataflow.steps)


def all_remote(problem: PartitionProblem, conditions: PartitionConditions) -> PartitionPlan:
    """The plan in which the fastest other device runs all steps that need not stay on the coordinator."""
    first = min(_cuts(problem), default=problem.dataflow.steps)
    return _fastest((_cut(problem, conditions, remote, first) for remote in _remotes(problem)), conditions)


def neurosurgeon(problem: PartitionProblem, conditions: PartitionConditions) -> PartitionPlan:
    """The best single cut: steps before it on the coordinator, the others on one device. Source: Kang et al. (ASPLOS 2017)."""
    found = (_cut(problem, conditions, remote, cut) for remote in _remotes(problem) for cut in _cuts(problem))
    return _fastest((all_at_home(problem, conditions), *found), conditions)


def dads(problem: PartitionProblem, conditions: PartitionConditions) -> PartitionPlan:
    """The minimum one-way cut with the best other device. Source: Hu et al. (INFOCOM 2019)."""
    found = (minimum_cut(problem, conditions, remote, one_way=True) for remote in _remotes(problem))
    return _fastest((all_at_home(problem, conditions), *found), conditions)


def neighbour_search(
    problem: PartitionProblem, conditions: PartitionConditions, start: int | None = None
) -> PartitionPlan:
    """A heuristic like CAS: move from the current cut to the better of its neighbours, while that improves the plan.

    start: the cut to begin with; None: in the middle. CAS (IMWUT 2021) adapts a partition to its context by a search among
    neighbouring partitions; it may end in a local optimum.
    """
    cuts = [*_cuts(problem), problem.dataflow.steps]
    found = []
    for remote in _remotes(problem):
        at = len(cuts) // 2 if start is None else min(range(len(cuts)), key=lambda one: abs(cuts[one] - start))
        while True:
            near = range(max(at - 1, 0), min(at + 2, len(cuts)))
            plans = {one: _cut(problem, conditions, remote, cuts[one]) for one in near}
            best = min(near, key=lambda one: (plans[one].latency_ms(conditions), one != at))
            if best == at:
                found.append(plans[at])
                break
            at = best
    return _fastest(found, conditions)


def _cut(problem: PartitionProblem, conditions: PartitionConditions, remote: int, cut: int) -> PartitionPlan:
    steps = problem.dataflow.steps
    return plan_of(problem, conditions, stays([problem.home] * cut + [remote] * (steps - cut)))


def _cuts(problem: PartitionProblem) -> Iterator[int]:
    """The cuts after which all steps may leave the coordinator."""
    steps, others = problem.dataflow.steps, _remotes(problem)
    kept = [step for step in range(steps) if not problem.allowed[step, others].any()]
    yield from range(max(kept, default=-1) + 1, steps)


def _remotes(problem: PartitionProblem) -> list[int]:
    return [device for device in range(problem.devices) if device != problem.home]


def _fastest(plans: Iterable[PartitionPlan], conditions: PartitionConditions) -> PartitionPlan:
    return min(plans, key=lambda plan: plan.latency_ms(conditions))
