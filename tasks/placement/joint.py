"""The joint search: SubNet, exit, devices of its segments and coding of sent values, in one exact search.

Winners of a joint search as SubNets with plans.

The stage "joint": the best SubNet over several devices for every latency budget, with its plan.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import tailor_ir
from profiling_agents.messages import ActivationCoding
from solvers.partition import PartitionProblem, plan_of, stays
from tailor_ir import NetworkPieces, SubnetDataflow, SuperNet, find_pieces
from tasks.base.errors import UserError
from tasks.base.progress import Progress
from tasks.base.schemas.placed import JOINT_FILE, JointFront, PlacedWinner
from tasks.base.schemas.predictions import Uncertainty
from tasks.base.schemas.stored import StageResult
from tasks.placement.codings import CODINGS_FILE, CodingLosses, no_losses
from tasks.placement.joint_problem import JointLimits, JointSearch, JointSpace, JointTerms
from tasks.placement.partition.planning import FeatureTimes, conditions_of, described, solver_dataflow
from tasks.prediction.accuracy import AccuracyPredictor
from tasks.prediction.sums import mac_sums, parameter_sums
from tasks.search.genetic import BestCode
from tasks.search.problem import FORBIDDEN_MS
from tasks.search.settings import Settings
from tasks.search.stage import find_winners


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


SIZES = {"parameters": parameter_sums, "macs": mac_sums}


def run(
    supernet: Path,
    tables: Sequence[FeatureTimes],
    accuracy: AccuracyPredictor,
    settings: Settings,
    losses: Path | None,
    out: Path,
    progress: Progress,
    uncertainty: Uncertainty,
) -> StageResult:
    """Write `joint.json`. tables: tables of `settings.placement`, in order. uncertainty: uncertainty of accuracies.

    losses: folder of `codings.json`; None: values are only sent in fp32. UserError: no SubNet keeps the budgets or limits,
    whatever its devices.
    """
    net = tailor_ir.load(supernet)
    pieces = find_pieces(net.pre_partition())
    lost = no_losses(len(pieces.crossing)) if losses is None else CodingLosses.read(losses / CODINGS_FILE)
    found = search_jointly(net, pieces, tables, accuracy, settings, lost, progress)
    return found.model_copy(update={"uncertainty": uncertainty}).write(out / JOINT_FILE)


def search_jointly(
    net: SuperNet,
    pieces: NetworkPieces,
    tables: Sequence[FeatureTimes],
    accuracy: AccuracyPredictor,
    settings: Settings,
    lost: CodingLosses,
    progress: Progress,
) -> JointFront:
    """The winners of all budgets. Raises the errors of `run`."""
    links = settings.partition.of(settings.placement)
    codings = settings.partition.ascending
    terms = JointTerms(
        space=_space(net, pieces, len(tables), len(codings)),
        devices=tables,
        conditions=conditions_of(tables, links, settings.partition.bandwidth_mbps),
        codings=codings,
        losses=lost.table(codings),
        private=private_pieces(pieces, settings.partition.private),
        returns=settings.partition.returns,
    )
    search = JointSearch(terms, accuracy, settings, limits_of(net, terms, settings))
    budgets, winners = find_winners(search.problem, search, settings, progress, search.costs)
    return JointFront(
        devices=settings.placement,
        winners=placed_winners(net, search, budgets, winners, settings.partition.bandwidth_mbps),
        pieces=len(pieces.pieces),
        coding_points={name: tuple(100 * one for one in found) for name, found in lost.losses.items()},
        settings=settings.model_dump(mode="json"),
    )


def _space(net: SuperNet, pieces: NetworkPieces, devices: int, codings: int) -> JointSpace:
    graph = net.structure.graph
    for names, what in ((graph.inputs, "inputs"), (graph.outputs, "outputs")):
        if len(names) != 1:
            raise UserError("search.placement", f"the network has {len(names)} {what}", allowed="one")
    return JointSpace(space=net.space, pieces=pieces, devices=devices, codings=codings)


def private_pieces(pieces: NetworkPieces, private: int) -> frozenset[int]:
    """The segments with one of the first `private` operators of some SubNet, or that read the input; none if `private` is 0."""
    found, before = set[int](), 0
    for number, piece in enumerate(pieces.pieces):
        if private and (before < private or piece.reads_input):
            found.add(number)
        before += sum(bool((term.features.numbers >= 0).all()) for term in piece.terms)  # operators in every SubNet
    return frozenset(found)


def limits_of(net: SuperNet, terms: JointTerms, settings: Settings) -> JointLimits:
    """The limits of a winner besides its budget, by setting."""
    found: JointLimits = {}
    for name, most in settings.limits.given.items():
        tables = [terms.space.table(table) for table in SIZES[name](net).tables]
        found[name] = (tables, most)
    for device, most in settings.partition.memory_mib.items():
        tables = terms.memory(settings.placement.index(device))
        found[f"partition.memory_mib.{device}"] = (tables, most)
    return found
