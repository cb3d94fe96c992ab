"""Multiply-accumulates and parameters of any SubNet, as sums over its operators."""

from tailor_ir import SuperNet
from tasks.predict.sums import Sums


def mac_sums(net: SuperNet) -> Sums:
    """Multiply-accumulates of one sample; as `SuperNet.macs`."""
    return Sums.compile(net, {feature: feature.macs for feature in net.unique_operators()})


def parameter_sums(net: SuperNet) -> Sums:
    """Parameters, BatchNorm folded; as `SuperNet.parameters`."""
    return Sums.compile(net, {feature: feature.parameters for feature in net.unique_operators()})
