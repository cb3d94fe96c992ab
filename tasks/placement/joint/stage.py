"""The stage "joint": the best SubNet over several devices for every latency budget, with its plan."""

from collections.abc import Sequence
from pathlib import Path

import tailor_ir
from tailor_ir import NetworkPieces, SuperNet, find_pieces
from tasks.base.errors import UserError
from tasks.base.progress import Progress
from tasks.base.schemas.accuracy import Uncertainty
from tasks.base.schemas.placed import JOINT_FILE, JointFront
from tasks.base.schemas.stored import StageResult
from tasks.placement.joint.described import placed_winners
from tasks.placement.joint.layout import JointSpace
from tasks.placement.joint.losses import CODINGS_FILE, CodingLosses, no_losses
from tasks.placement.joint.problem import JointLimits, JointSearch
from tasks.placement.joint.terms import JointTerms
from tasks.placement.partition.planning import conditions_of
from tasks.placement.partition.tables import FeatureTimes
from tasks.prediction.accuracy import AccuracyPredictor
from tasks.prediction.sums import mac_sums, parameter_sums
from tasks.search.settings import Settings
from tasks.search.stage import find_winners

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
