"""The SuperNet's half of stage "predict": every sensitivity, interactions of pairs, and the accuracy predictor's error.

Interactions are pairs of modifications measured together; they are kept if they improve the predictor. Variables that
some operator depends on together are paired, each at the choice with the largest effect. Pairs with the largest product
of effects come first: that product is the interaction of two modifications that each leave a share of the accuracy. The
predictors stay sums of terms over variables that operators couple anyway, so the exact search stays fast.

The accuracy predictor of int8 devices has the sensitivities of fp32, minus the mean loss by int8. The loss is measured
on the SubNets that validated the fp32 predictor. It varies between SubNets much less than the errors of sums of
sensitivities. So its mean is subtracted, and errors are stated against accuracies in int8.
"""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

import tailor_ir
from solvers.tables import Codes
from tailor_ir import SuperNet
from tasks.base.artifacts import SubNetLines, Workspace
from tasks.base.progress import Progress
from tasks.base.schemas.predictions import (
    ACCURACY_VALIDATION_FILE,
    SENSITIVITIES_FILE,
    AccuracyValidation,
    CheckedAccuracy,
    Int8Cost,
    Interaction,
    Interactions,
    MeasuredAccuracy,
    Sensitivities,
    UsedInteraction,
)
from tasks.base.schemas.stored import PointErrors, StageResult
from tasks.data import DataSettings, load_splits
from tasks.evaluation.pictures import ANSWERS_FILE, write_answers
from tasks.evaluation.quantise import Int8
from tasks.evaluation.settings import EvaluationSettings
from tasks.evaluation.subnets import (
    Accuracy,
    EvaluationData,
    EvaluationResources,
    EvaluationWorkers,
    accuracies,
    accuracy_lines,
)
from tasks.evaluation.subnets.images import pick_device
from tasks.measuring.jobs import pieces
from tasks.measuring.subnets import validation_configs
from tasks.prediction.accuracy import AccuracyPredictor, measure_sensitivities, validate
from tasks.prediction.settings import AccuracySettings


def strongest_pairs(net: SuperNet, plain: AccuracyPredictor, most: int) -> Codes:
    """Codes (P, V), at most `most`, of the largest SubNet with two modifications, the strongest pair first."""
    effects = [values for _, values in plain.tables]
    choices = [int(np.argmax(np.abs(values))) for values in effects]
    sizes = [float(np.abs(values).max()) for values in effects]
    terms = [[column for column in sorted(term.variables) if column < len(effects)] for term in net.operator_terms()]
    coupled = {pair for variables in terms for pair in combinations(variables, 2)}
    codes = []
    for a, b in sorted(coupled, key=lambda pair: (-sizes[pair[0]] * sizes[pair[1]], pair)):
        code = net.space.cardinalities - 1
        code[[a, b]] = choices[a], choices[b]
        if sizes[a] * sizes[b] > 0 and (net.space.canonical_codes(code[None])[0] == code).all():  # it has both
            codes.append(code)
    return np.array(codes[:most], np.int64).reshape(-1, len(effects))


def with_interactions(
    net: SuperNet,
    plain: AccuracyPredictor,
    most: int,
    data: EvaluationData,
    file: Path | SubNetLines,
    progress: Progress,
) -> AccuracyPredictor:
    """The predictor with the interactions of the strongest pairs, from at most `most` evaluations more than `plain`.

    Each evaluation is a JSON line of `file`, which also holds those behind `plain`; a second call continues there.
    """
    codes = strongest_pairs(net, plain, most)
    largest = net.space.cardinalities - 1
    columns = [np.flatnonzero(code != largest) for code in codes]
    corners = [_corners(code, pair, largest) for code, pair in zip(codes, columns, strict=True)]
    configs = [net.space.decode(corner) for four in corners for corner in four]
    measured = accuracies(net, configs, data, file, progress, "interactions")
    variables = net.space.variables
    interactions = tuple(
        Interaction(
            variables=(variables[a].name, variables[b].name),
            choices=(variables[a].choices[code[a]], variables[b].choices[code[b]]),
            measured=MeasuredAccuracy(accuracy=four[-1].share, loss=four[-1].loss),
            standard_error=_error(four),
        )
        for code, (a, b), four in zip(codes, columns, pieces(measured, 4), strict=True)
    )
    return AccuracyPredictor(plain.table.model_copy(update={"interactions": interactions}))


def _corners(code: Codes, columns: Codes, largest: Codes) -> list[Codes]:
    """The largest SubNet, with the first modification, with the second, with both; (V,) each."""
    found = [largest.copy() for _ in range(4)]
    for corner, changed in zip(found, (columns[:0], columns[:1], columns[1:], columns), strict=True):
        corner[changed] = code[changed]
    return found


def _error(four: Sequence[Accuracy]) -> float:
    """Standard error of an interaction, given that all four SubNets were evaluated on the same images."""
    largest, first, second, both = (found.each for found in four)
    return float(np.std(both - first - second + largest) / np.sqrt(len(both)))


def better(plain: PointErrors, other: PointErrors) -> bool:
    """Whether `other` orders held-out SubNets better than `plain`, or equally well with smaller errors (of `validate`)."""
    first, second = (
        (-1.0 if one.kendall_tau is None else one.kendall_tau, -one.mean_error_points) for one in (plain, other)
    )
    return second > first


def describe(plain: PointErrors, other: PointErrors, predictor: AccuracyPredictor, used: bool) -> Interactions:
    """The measured interactions, and the errors of both predictors on the SubNets that decided between them."""
    table = zip(predictor.table.interactions, predictor.residuals, predictor.kept, strict=True)
    return Interactions(
        used=used,
        evaluations=len(predictor.table.interactions),
        plain=plain,
        with_interactions=other,
        rows=tuple(
            UsedInteraction(
                variables=each.variables,
                choices=each.choices,
                residual_points=100 * float(residual),
                standard_error_points=100 * each.standard_error,
                kept=float(kept),
            )
            for each, residual, kept in table
        ),
    )


EVALUATED_FILE = "evaluated_subnets.jsonl"


def images_of(
    settings: EvaluationSettings, data: DataSettings, workers: EvaluationWorkers | None = None
) -> EvaluationData:
    """The images for evaluating SubNets (for predictors and winners), on the fastest device of this machine."""
    splits = load_splits(data)
    return EvaluationData(
        splits["validation"],
        splits["train"],
        limit=settings.validation_images,
        recalibration_images=settings.recalibration_images,
        resources=EvaluationResources(device=pick_device("auto"), features_mib=settings.features_mib, workers=workers),
    )


def run(
    settings: AccuracySettings,
    data: DataSettings,
    supernet: Path,
    workspace: Workspace,
    workers: EvaluationWorkers | None = None,
) -> StageResult:
    """Write `sensitivities.json` (the predictor) and its validation on the SubNets whose latency is checked, too.

    Also writes `answers.png`, if answers can be drawn.

    Everything is on the validation split, with recalibrated BatchNorm; SubNets in the store are not evaluated again. A second
    call in the same folder continues. Interactions, if requested, are in the predictor if they improve the order of these
    SubNets.
    """
    out, progress, net = workspace.out, workspace.progress, tailor_ir.load(supernet)
    images = images_of(settings, data, workers)
    net.elastic.to(images.device)
    file = accuracy_lines(workspace.store, supernet, "validation", images, out / EVALUATED_FILE, progress)
    predictor = AccuracyPredictor(measure_sensitivities(net, images, file, progress))
    configs = [dict(config) for config in validation_configs(net, settings.random_subnets, settings.seed)]
    codes, measured = net.space.encode(configs), accuracies(net, configs, images, file, progress, "validate accuracy")
    result = validate(predictor, codes, measured)
    interactions = None
    if settings.interactions:
        other = with_interactions(net, predictor, settings.interactions, images, file, progress)
        found = validate(other, codes, measured)
        used = better(result.errors, found.errors)
        interactions = describe(result.errors, found.errors, other, used)
        if used:
            predictor, result = other, found
    write_answers(net, images, out / ANSWERS_FILE)
    predictor.save(out / SENSITIVITIES_FILE)
    rows = tuple(
        CheckedAccuracy(digest=net.space.digest(config), config=config, **row.to_json())
        for row, config in zip(result.rows, configs, strict=True)
    )
    stated = AccuracyValidation(**result.errors.to_json(), rows=rows, interactions=interactions)
    return stated.write(out / ACCURACY_VALIDATION_FILE)


def run_int8(
    settings: EvaluationSettings,
    precision: Int8,
    data: DataSettings,
    supernet: Path,
    sensitivities: Path,
    workspace: Workspace,
    workers: EvaluationWorkers | None = None,
) -> StageResult:
    """Write `sensitivities.json` of int8 and its validation. sensitivities: the folder with those of fp32.

    A second call in the same folder continues; SubNets in the store are not evaluated again.
    """
    out, progress, net = workspace.out, workspace.progress, tailor_ir.load(supernet)
    images = images_of(settings, data, workers).in_precision(precision)
    net.elastic.to(images.device)
    table = Sensitivities.read(sensitivities / SENSITIVITIES_FILE)
    exact = AccuracyValidation.read(sensitivities / ACCURACY_VALIDATION_FILE).rows
    configs = [row.config for row in exact]
    file = accuracy_lines(workspace.store, supernet, "validation", images, out / EVALUATED_FILE, progress)
    measured = accuracies(net, configs, images, file, progress, "accuracy in int8")
    lost = np.array([row.accuracy - found.share for row, found in zip(exact, measured, strict=True)])
    added_loss = np.array([found.loss - row.loss for row, found in zip(exact, measured, strict=True)])
    predictor = AccuracyPredictor(_less(table, float(lost.mean()), float(added_loss.mean())))
    result = validate(predictor, net.space.encode(configs), measured)
    predictor.save(out / SENSITIVITIES_FILE)
    rows = tuple(
        CheckedAccuracy(digest=row.digest, config=row.config, **checked.to_json())
        for row, checked in zip(exact, result.rows, strict=True)
    )
    cost = Int8Cost(
        subnets=len(rows),
        mean_points=100 * float(lost.mean()),
        least_points=100 * float(lost.min()),
        most_points=100 * float(lost.max()),
        largest_points=100 * float(lost[0]),
        reduce_range=precision.settings.reduce_range,
    )
    stated = AccuracyValidation(**result.errors.to_json(), rows=rows, interactions=None, int8=cost)
    return stated.write(out / ACCURACY_VALIDATION_FILE)


def _less(table: Sensitivities, lost: float, added_loss: float) -> Sensitivities:
    """The table with every SubNet's accuracy lower by `lost`, and its cross-entropy loss higher by `added_loss`."""

    def changed(found: MeasuredAccuracy) -> MeasuredAccuracy:
        return MeasuredAccuracy(accuracy=float(np.clip(found.accuracy - lost, 0, 1)), loss=found.loss + added_loss)

    return table.model_copy(
        update={
            "largest": changed(table.largest),
            "variables": tuple(
                row.model_copy(update={"measured": tuple(map(changed, row.measured))}) for row in table.variables
            ),
            "interactions": tuple(
                each.model_copy(update={"measured": changed(each.measured)}) for each in table.interactions
            ),
        }
    )
