"""SubNets in parts that pass values to each other: up to each exit, or from one block to the next."""

from tailor_ir.subnets.segments.blocks import BlockPart, BlockSegment, find_block_parts
from tailor_ir.subnets.segments.exits import Segment, exits_of, find_parts, with_all_answers
from tailor_ir.subnets.segments.part import AnswerPart, Part

__all__ = [
    "AnswerPart",
    "BlockPart",
    "BlockSegment",
    "Part",
    "Segment",
    "exits_of",
    "find_block_parts",
    "find_parts",
    "with_all_answers",
]
