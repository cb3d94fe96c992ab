"""Gradients of a SubNet on the device, by torch. Whatever imports this imports torch and onnx; nothing else here does."""

from adaptive_runtime.adapting_weights.gradients.network import DifferentiableNetwork

__all__ = ["DifferentiableNetwork"]
