"""Turns any feed-forward network into a weight-sharing SuperNet, found by dependencies between axes."""

from typing import TYPE_CHECKING

import importing  # before any library
from importing import public_names

if TYPE_CHECKING:
    from tailor_ir.alignment import NODES as ALIGNMENT_NODES
    from tailor_ir.alignment import InputAlignment
    from tailor_ir.alternatives import PASSES as FITTING_PASSES
    from tailor_ir.alternatives import FirstWeights
    from tailor_ir.conversion import Conversion, convert, trim_kernels
    from tailor_ir.errors import CheckFailed, ConfigError, ImportFailed, InputError, JoinError, SpaceError, TailorError
    from tailor_ir.exits import PASSES as EXIT_PASSES
    from tailor_ir.exits import ExitParts, FirstExit
    from tailor_ir.graph import NO_BATCH
    from tailor_ir.operators.features import OperatorFeature, operator_model
    from tailor_ir.operators.table import OperatorTerm, PlacedOperator, PlacedOperators
    from tailor_ir.partition import HandedValue, OperatorFlow, PrePartition, SubnetDataflow, find_flows
    from tailor_ir.reading.files import note_type
    from tailor_ir.reading.trace import load_onnx
    from tailor_ir.spaces.kinds import KINDS
    from tailor_ir.spaces.selectors import OF_SEVERAL, Choice, Config, Variable, asks_for_exits, choice_text
    from tailor_ir.spaces.space import Space
    from tailor_ir.storage import load_spec
    from tailor_ir.structure.regions import Block, Regions
    from tailor_ir.subnets.batch_norms import Statistics
    from tailor_ir.subnets.elastic import Elastic
    from tailor_ir.subnets.segments import BlockSegment, Segment
    from tailor_ir.supernet import Batching, ChannelOrder, Reference, SuperNet, batch_axes, compile, load
else:
    __getattr__ = public_names(__name__, __file__)

__all__ = [
    "ALIGNMENT_NODES",
    "EXIT_PASSES",
    "FITTING_PASSES",
    "KINDS",
    "NO_BATCH",
    "OF_SEVERAL",
    "Batching",
    "Block",
    "BlockSegment",
    "ChannelOrder",
    "CheckFailed",
    "Choice",
    "Config",
    "ConfigError",
    "Conversion",
    "Elastic",
    "ExitParts",
    "FirstExit",
    "FirstWeights",
    "HandedValue",
    "ImportFailed",
    "InputAlignment",
    "InputError",
    "JoinError",
    "OperatorFeature",
    "OperatorFlow",
    "OperatorTerm",
    "PlacedOperator",
    "PlacedOperators",
    "PrePartition",
    "Reference",
    "Regions",
    "Segment",
    "Space",
    "SpaceError",
    "Statistics",
    "SubnetDataflow",
    "SuperNet",
    "TailorError",
    "Variable",
    "asks_for_exits",
    "batch_axes",
    "choice_text",
    "compile",
    "convert",
    "find_flows",
    "load",
    "load_onnx",
    "load_spec",
    "note_type",
    "operator_model",
    "trim_kernels",
]
