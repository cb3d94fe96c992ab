"""int8 files of SubNets by static quantisation; layers that lose too much accuracy stay in fp32."""

from typing import TYPE_CHECKING

from importing import public_names

if TYPE_CHECKING:
    from tasks.evaluation.quantise.accuracy import Int8, QuantisedSubNet, quantise
    from tasks.evaluation.settings import Settings
else:
    __getattr__ = public_names(__name__, __file__)
