"""A training step as a list of instructions, with the bytes and seconds that they will take.

The instructions of a span follow from its recipe alone. What runs them is `tasks.training.memory.execution`.
"""

from tasks.training.memory.program.instructions import Do, Join, SpanProgram, StepFacts, StepInstruction
from tasks.training.memory.program.writer import total, write

__all__ = ["Do", "Join", "SpanProgram", "StepFacts", "StepInstruction", "total", "write"]
