"""Winners of a joint search as SubNets with plans."""

import math
from collections.abc import Sequence

import numpy as np

from profiling_agents.messages import ActivationCoding
from solvers.partition import PartitionProblem, plan_of, stays
from tailor_ir import SubnetDataflow, SuperNet
from tasks.base.schemas.placed import PlacedWinner
from tasks.placement.joint.problem import JointSearch
from tasks.placement.joint.terms import JointTerms
from tasks.placement.partition.planning import described, solver_dataflow
from tasks.search.genetic import BestCode
from tasks.search.terms import FORBIDDEN_MS


def placed_winners(
    net: SuperNet,
    search: JointSearch,
    budgets: Sequence[tuple[float, ...]],
    winners: Sequence[BestCode],
    bandwidth_mbps: float,
) -> tuple[PlacedWinner, ...]:
    """One row per budget [ms]. bandwidth_mbps: bandwidth of links without a name."""
    return tuple(
        _winner(net, search, budget[0], winner, bandwidth_mbps) for budget, winner in zip(budgets, winners, strict=True)
    )


def _winner(
    net: SuperNet, search: JointSearch, budget_ms: float, winner: BestCode, bandwidth_mbps: float
) -> PlacedWinner:
    space, terms, code = search.space, search.terms, winner.code
    config = net.space.decode(code[: space.variables])
    coding = terms.codings[int(code[space.coding])]
    dataflow = net.pre_partition().under(code[: space.variables])
    problem = problem_of(dataflow, terms, coding)
    device_of = space.placed(code)
    plan = plan_of(problem, terms.conditions, stays([device_of[at] for at in dataflow.positions]))
    names = [device.name for device in terms.devices]
    row = described(plan, problem, terms.conditions, names, bandwidth_mbps, terms.devices[0].offset_ms)
    predicted_ms, home_ms = search.latency.predict(np.stack([code, search.at_home(code)])).tolist()
    assert math.isclose(row.latency_ms, predicted_ms, rel_tol=1e-6), (row.latency_ms, predicted_ms)
    return PlacedWinner(
        digest=net.space.digest(config),
        config=config,
        predicted_ms=predicted_ms,
        predicted_accuracy=float(search.accuracy.predict(code[None])[0]),
        predicted_score=float(search.accuracy.score(code[None])[0]),
        macs=int(net.macs(config)),
        parameters=int(net.parameters(config)),
        budget_ms=budget_ms,
        generations=winner.generations,
        stopped=winner.stopped,
        coding=coding,
        lost_points=100 * float(search.accuracy.losses.predict(code[None])[0]),
        home_ms=home_ms if home_ms < FORBIDDEN_MS else None,
        plan=row,
    )


def problem_of(dataflow: SubnetDataflow, terms: JointTerms, coding: ActivationCoding) -> PartitionProblem:
    """The partition problem of a SubNet of a joint search, with its values in a coding."""
    operators = [one.feature for one in dataflow.operators]
    compute_ms = np.asarray([[device.operator_ms(one) for device in terms.devices] for one in operators])
    return PartitionProblem(
        dataflow=solver_dataflow(dataflow, coding),
        compute_ms=np.where(np.isnan(compute_ms), np.inf, compute_ms),
        returns=terms.returns,
    )
