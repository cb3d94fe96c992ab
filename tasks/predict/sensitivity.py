"""The SuperNet's half of stage "predict": measure every sensitivity and state the accuracy predictor's error."""

from pathlib import Path
from typing import Any

import tailor_ir
from tasks.artifacts import write_json
from tasks.data import DataSettings, load_splits
from tasks.evaluate import EvaluationData, accuracies
from tasks.finetune.device import pick_device
from tasks.predict.accuracy import AccuracyPredictor, measure_sensitivities, validate
from tasks.predict.interactions import better, describe, with_interactions
from tasks.predict.measure import validation_configs
from tasks.predict.settings import Settings
from tasks.progress import Progress

SENSITIVITIES_FILE = "sensitivities.json"
VALIDATION_FILE = "accuracy_validation.json"
EVALUATED_FILE = "evaluated_subnets.jsonl"


def images_of(settings: Settings, data: DataSettings) -> EvaluationData:
    """The images that SubNets are evaluated on for predictors and winners, on the fastest device of this machine."""
    splits = load_splits(data)
    return EvaluationData(
        splits["validation"],
        splits["train"],
        device=pick_device("auto"),
        limit=settings.validation_images,
        recalibration_images=settings.recalibration_images,
        features_mib=settings.features_mib,
    )


def run(settings: Settings, data: DataSettings, supernet: Path, out: Path, progress: Progress) -> dict[str, Any]:
    """Write `sensitivities.json` (the predictor) and its validation on the SubNets whose latency is checked too.

    All on the validation split, with recalibrated BatchNorm. A second call in the same folder goes on. Interactions, where
    they are asked for, are in the predictor if these SubNets are ordered better with them than without.
    """
    net = tailor_ir.load(supernet)
    images = images_of(settings, data)
    net.elastic.to(images.device)
    file = out / EVALUATED_FILE
    predictor = AccuracyPredictor(measure_sensitivities(net, images, file, progress))
    configs = [dict(config) for config in validation_configs(net, settings.random_subnets, settings.seed)]
    codes, measured = net.space.encode(configs), accuracies(net, configs, images, file, progress, "validate accuracy")
    result = validate(predictor, codes, measured)
    interactions = None
    if settings.interactions:
        other = with_interactions(net, predictor, settings.interactions, images, file, progress)
        found = validate(other, codes, measured)
        used = better(result, found)
        interactions = describe(result, found, other, used)
        if used:
            predictor, result = other, found
    predictor.save(out / SENSITIVITIES_FILE)
    for row, config in zip(result["rows"], configs, strict=True):
        row |= {"digest": net.space.digest(config), "config": config}
    result["interactions"] = interactions
    write_json(out / VALIDATION_FILE, result)
    return result
