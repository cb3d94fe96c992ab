"""The SuperNet's half of stage "predict": measure every sensitivity and state the accuracy predictor's error."""

from pathlib import Path

import tailor_ir
from tasks.base.artifacts import NO_STORE, SubNetStore
from tasks.base.device import pick_device
from tasks.base.progress import Progress
from tasks.base.schemas.accuracy import SENSITIVITIES_FILE, VALIDATION_FILE, AccuracyValidation, CheckedAccuracy
from tasks.base.schemas.stored import StageResult
from tasks.data import DataSettings, load_splits
from tasks.evaluation.pictures import ANSWERS_FILE, write_answers
from tasks.evaluation.settings import EvaluationSettings
from tasks.evaluation.subnets import EvaluationData, EvaluationWorkers, accuracies, accuracy_lines
from tasks.measuring.subnets import validation_configs
from tasks.prediction.accuracy import AccuracyPredictor, measure_sensitivities, validate
from tasks.prediction.interactions import better, describe, with_interactions
from tasks.prediction.settings import AccuracySettings

EVALUATED_FILE = "evaluated_subnets.jsonl"


def images_of(
    settings: EvaluationSettings, data: DataSettings, workers: EvaluationWorkers | None = None
) -> EvaluationData:
    """The images for evaluating SubNets (for predictors and winners), on the fastest device of this machine."""
    splits = load_splits(data)
    return EvaluationData(
        splits["validation"],
        splits["train"],
        device=pick_device("auto"),
        limit=settings.validation_images,
        recalibration_images=settings.recalibration_images,
        features_mib=settings.features_mib,
        workers=workers,
    )


def run(
    settings: AccuracySettings,
    data: DataSettings,
    supernet: Path,
    out: Path,
    progress: Progress,
    store: SubNetStore = NO_STORE,
    workers: EvaluationWorkers | None = None,
) -> StageResult:
    """Write `sensitivities.json` (the predictor) and its validation on the SubNets whose latency is checked, too.

    Also writes `answers.png`, if answers can be drawn.

    Everything is on the validation split, with recalibrated BatchNorm; SubNets in the store are not evaluated again. A second
    call in the same folder continues. Interactions, if requested, are in the predictor if they improve the order of these
    SubNets.
    """
    net = tailor_ir.load(supernet)
    images = images_of(settings, data, workers)
    net.elastic.to(images.device)
    file = accuracy_lines(store, supernet, "validation", images, out / EVALUATED_FILE, progress)
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
    return stated.write(out / VALIDATION_FILE)
