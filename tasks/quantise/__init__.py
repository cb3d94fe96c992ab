"""int8 files of SubNets by static quantisation, with the layers in fp32 that lose too much accuracy."""

from tasks.quantise.accuracy import Int8
from tasks.quantise.mixed import QuantisedSubNet, quantise
from tasks.quantise.settings import Settings

__all__ = ["Int8", "QuantisedSubNet", "Settings", "quantise"]
