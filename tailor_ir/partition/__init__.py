"""Pre-partition: the facts about a network that splitting it over devices needs.

Computed once for each SuperNet, independently of devices: operators in the order in which they run, the values that cross each
cut between two operators, and the operators that can run side by side.
"""

from tailor_ir.partition.dataflow import HandedValue, OperatorFlow, SubnetDataflow, find_flows, split_parts
from tailor_ir.partition.pre_partition import PrePartition
