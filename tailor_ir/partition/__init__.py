"""Pre-partition: the facts about a network that splitting it over devices needs.

Computed once for each SuperNet, independently of devices: operators in the order in which they run, the values that cross each
cut between two operators, and the operators that can run side by side.
"""

from tailor_ir.partition.dataflow import HandedValue, SubnetDataflow
from tailor_ir.partition.flows import OperatorFlow, find_flows
from tailor_ir.partition.parts import split_parts
from tailor_ir.partition.pieces import NetworkPiece, NetworkPieces, find_pieces
from tailor_ir.partition.pre_partition import PrePartition

__all__ = [
    "HandedValue",
    "NetworkPiece",
    "NetworkPieces",
    "OperatorFlow",
    "PrePartition",
    "SubnetDataflow",
    "find_flows",
    "find_pieces",
    "split_parts",
]
