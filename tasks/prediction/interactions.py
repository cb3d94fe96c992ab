"""Interactions: pairs of modifications measured together, and whether they improve the accuracy predictor.

Variables that some operator depends on together are paired, each at the choice with the largest effect. Pairs with the largest
product of effects come first: that product is the interaction of two modifications that each leave a share of the accuracy. The
predictors stay sums of terms over variables that operators couple anyway, so the exact search stays fast.
"""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from solvers.tables import Codes
from tailor_ir import SuperNet
from tasks.base.artifacts import SubNetLines
from tasks.base.progress import Progress
from tasks.base.schemas.accuracy import Interaction, Interactions, MeasuredAccuracy, UsedInteraction
from tasks.base.schemas.agreement import PointErrors
from tasks.evaluation.subnets import Accuracy, EvaluationData, accuracies
from tasks.prediction.accuracy import AccuracyPredictor


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
        for code, (a, b), four in zip(codes, columns, _fours(measured), strict=True)
    )
    return AccuracyPredictor(plain.table.model_copy(update={"interactions": interactions}))


def _corners(code: Codes, columns: Codes, largest: Codes) -> list[Codes]:
    """The largest SubNet, with the first modification, with the second, with both; (V,) each."""
    found = [largest.copy() for _ in range(4)]
    for corner, changed in zip(found, (columns[:0], columns[:1], columns[1:], columns), strict=True):
        corner[changed] = code[changed]
    return found


def _fours(measured: Sequence[Accuracy]) -> list[Sequence[Accuracy]]:
    return [measured[start : start + 4] for start in range(0, len(measured), 4)]


def _error(four: Sequence[Accuracy]) -> float:
    """Standard error of an interaction, given that all four SubNets were evaluated on the same images."""
    largest, first, second, both = (found.each for found in four)
    return float(np.std(both - first - second + largest) / np.sqrt(len(both)))


def better(plain: PointErrors, other: PointErrors) -> bool:
    """Whether `other` orders held-out SubNets better than `plain`, or equally well with smaller errors (of `validate`)."""
    return _rank(other) > _rank(plain)


def _rank(stated: PointErrors) -> tuple[float, float]:
    return (-1.0 if stated.kendall_tau is None else stated.kendall_tau), -stated.mean_error_points


def describe(plain: PointErrors, other: PointErrors, predictor: AccuracyPredictor, used: bool) -> Interactions:
    """The measured interactions, and the errors of both predictors on the SubNets that decided between them."""
    table = zip(predictor.table.interactions, predictor.residuals, predictor.kept, strict=True)
    return Interactions(
        used=used,
        evaluations=len(predictor.table.interactions),
        plain=_errors(plain),
        with_interactions=_errors(other),
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


def _errors(stated: PointErrors) -> PointErrors:
    """The errors alone, without fields that are equal for both predictors."""
    return PointErrors.model_validate({name: getattr(stated, name) for name in PointErrors.model_fields})
