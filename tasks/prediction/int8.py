"""The accuracy predictor of int8 devices: the sensitivities of fp32, minus the mean loss by int8.

The loss is measured on the SubNets that validated the fp32 predictor. It varies between SubNets much less than the errors of
sums of sensitivities. So its mean is subtracted, and errors are stated against accuracies in int8.
"""

from pathlib import Path

import numpy as np

import tailor_ir
from tasks.base.artifacts import NO_STORE, SubNetStore
from tasks.base.progress import Progress
from tasks.base.schemas.accuracy import (
    SENSITIVITIES_FILE,
    VALIDATION_FILE,
    AccuracyValidation,
    CheckedAccuracy,
    Int8Cost,
    MeasuredAccuracy,
    Sensitivities,
)
from tasks.base.schemas.stored import StageResult
from tasks.data import DataSettings
from tasks.evaluation.quantise import Int8
from tasks.evaluation.settings import EvaluationSettings
from tasks.evaluation.subnets import EvaluationWorkers, accuracies, accuracy_lines
from tasks.prediction.accuracy import AccuracyPredictor, validate
from tasks.prediction.sensitivity import EVALUATED_FILE, images_of


def run(
    settings: EvaluationSettings,
    precision: Int8,
    data: DataSettings,
    supernet: Path,
    sensitivities: Path,
    out: Path,
    progress: Progress,
    store: SubNetStore = NO_STORE,
    workers: EvaluationWorkers | None = None,
) -> StageResult:
    """Write `sensitivities.json` of int8 and its validation. sensitivities: the folder with those of fp32.

    A second call in the same folder continues; SubNets in the store are not evaluated again.
    """
    net = tailor_ir.load(supernet)
    images = images_of(settings, data, workers).in_precision(precision)
    net.elastic.to(images.device)
    table = Sensitivities.read(sensitivities / SENSITIVITIES_FILE)
    exact = AccuracyValidation.read(sensitivities / VALIDATION_FILE).rows
    configs = [row.config for row in exact]
    file = accuracy_lines(store, supernet, "validation", images, out / EVALUATED_FILE, progress)
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
    return stated.write(out / VALIDATION_FILE)


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
