"""Accuracy of a SuperNet's largest and smallest SubNets."""

from tailor_ir import SuperNet
from tasks.data import Dataset
from tasks.evaluation.subnets import EvaluationData, accuracy


def accuracies_of_ends(net: SuperNet, validation: EvaluationData, test: Dataset) -> dict[str, float]:
    """`largest_validation_accuracy`, `smallest_test_accuracy` and so on, in [0, 1]."""
    return {
        f"{name}_{split}_accuracy": accuracy(net, config, images).share
        for split, images in (("validation", validation), ("test", validation.of(test, limited=False)))
        for name, config in (("largest", net.max_config), ("smallest", net.min_config))
    }
