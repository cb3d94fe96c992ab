"""Accuracies of SubNets with every layer in int8, each with ranges of its own, computed by onnxruntime on this machine.

Predictions from int8 accuracies work as in fp32: the sensitivities of int8 are those of the largest SubNet with one variable
changed at a time, in int8 (`tasks.prediction.accuracy.sensitivities`).
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tailor_ir import Config, Statistics, SuperNet
from tasks.evaluation.onnx_files import OnnxNetwork
from tasks.evaluation.quantise.mixed import CalibratedSubNet
from tasks.evaluation.quantise.settings import Settings
from tasks.evaluation.subnets import Accuracy, EvaluationData, count_correct


@dataclass(frozen=True, slots=True)
class Int8:
    """The precision in which `tasks.evaluation.subnets.accuracies` evaluates SubNets that are quantised whole."""

    settings: Settings

    @property
    def key(self) -> Mapping[str, bool | str]:
        """Key with `reduce_range` alone: every layer is in int8, whatever it loses."""
        return {"precision": "int8", "reduce_range": self.settings.reduce_range}

    def accuracy(self, net: SuperNet, config: Config, statistics: Statistics, data: EvaluationData) -> Accuracy:
        """Accuracy of one SubNet with its BatchNorm statistics."""
        with tempfile.TemporaryDirectory(prefix="autotailor-int8-") as folder:
            subnet = CalibratedSubNet.of(net, config, statistics, self.settings, data, Path(folder))
            batches = ((x_BCHW, y_B.cpu()) for x_BCHW, y_B in data.batches(subnet.size))
            return count_correct(OnnxNetwork(subnet.quantised(())), batches, data.problem)
