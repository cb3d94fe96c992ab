"""Gradients of a SubNet on the device, in torch.

Importing this package imports torch and onnx; nothing else here does.
"""

from adaptive_runtime.weights.gradients.network import DifferentiableNetwork

__all__ = ["DifferentiableNetwork"]
