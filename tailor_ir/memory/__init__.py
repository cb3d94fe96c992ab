"""Memory of SubNets: the steps that a runtime executes, the lifetimes of tensors, the arena of onnxruntime."""

from tailor_ir.memory.activations import ActivationMemory
from tailor_ir.memory.layouts import ONNXRUNTIME, Rules
from tailor_ir.memory.terms import MemoryTerms, StepTerm

__all__ = ["ONNXRUNTIME", "ActivationMemory", "MemoryTerms", "Rules", "StepTerm"]
