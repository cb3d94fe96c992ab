"""Memory of SubNets: the steps that a runtime executes, the lifetimes of tensors, the arena of onnxruntime."""

from typing import TYPE_CHECKING

from importing import public_names

if TYPE_CHECKING:
    from tailor_ir.memory.activations import ActivationMemory
    from tailor_ir.memory.layouts import ONNXRUNTIME, Rules
    from tailor_ir.memory.terms import MemoryTerms, StepTerm
else:
    __getattr__ = public_names(__name__, __file__)
