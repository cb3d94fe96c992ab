"""Methods that adapt a SubNet to images without labels, one batch after another."""

from collections.abc import Callable, Sequence

import torch

from tailor_ir import InputAlignment
from tasks.adaptation.methods.cotta import Cotta
from tasks.adaptation.methods.eata import Eata
from tasks.adaptation.methods.record import AdaptationMethod, BatchStatistics, Budgeted
from tasks.adaptation.methods.sar import Sar
from tasks.adaptation.methods.tent import Roid, Tent
from tasks.adaptation.settings import MethodName, MethodSettings
from tasks.evaluation.adapted import AdaptiveSubnet

MethodMaker = Callable[[AdaptiveSubnet, MethodSettings, Sequence[torch.Tensor]], AdaptationMethod]

METHODS: dict[MethodName, MethodMaker] = {
    "batchnorm": lambda subnet, settings, _: BatchStatistics(subnet, settings),
    "tent": lambda subnet, settings, _: Tent(subnet, settings),
    "eata": Eata,
    "sar": lambda subnet, settings, _: Sar(subnet, settings),
    "cotta": lambda subnet, settings, _: Cotta(subnet, settings),
    "roid": lambda subnet, settings, _: Roid(subnet, settings),
}


def make_method(subnet: AdaptiveSubnet, settings: MethodSettings, source: Sequence[torch.Tensor]) -> AdaptationMethod:
    """The method with this name. source: batches (B, C, H, W) like those of training, which show usual inputs.
    EATA also derives the importance of parameters from them.
    """
    if settings.input_deviations is not None:
        subnet.alignment = InputAlignment.of(source, settings.input_deviations)
    method = METHODS[settings.method](subnet, settings, source)
    return method if settings.memory_mib is None else Budgeted(method, settings.memory_mib)
