"""Accuracy of a SuperNet's largest and smallest SubNets."""

from typing import Any, NamedTuple

from tailor_ir import SuperNet
from tasks.data import Dataset
from tasks.evaluation.subnets import Accuracy, EvaluationData, accuracy


class Ends(NamedTuple):
    """Accuracies of the largest and the smallest SubNet on the same samples."""

    largest: Accuracy
    smallest: Accuracy

    @property
    def mean(self) -> float:
        """The mean of their scores."""
        return (self.largest.share + self.smallest.share) / 2


def ends_on(net: SuperNet, data: EvaluationData) -> Ends:
    """The accuracies on `data`."""
    return Ends(accuracy(net, net.max_config, data), accuracy(net, net.min_config, data))


def accuracies_of_ends(
    net: SuperNet, validation: EvaluationData, test: Dataset, validated: Ends | None = None
) -> dict[str, Any]:
    """`largest_validation_accuracy`, `smallest_test_accuracy` and so on, in [0, 1]; `validation_samples`, `test_samples`.

    validated: on the validation images, if known already.
    """
    found = {
        "validation": validated or ends_on(net, validation),
        "test": ends_on(net, validation.of(test, limited=False)),
    }
    shares = {
        f"{name}_{split}_accuracy": getattr(ends, name).share
        for split, ends in found.items()
        for name in ("largest", "smallest")
    }
    return shares | {f"{split}_samples": ends.largest.total for split, ends in found.items()}
