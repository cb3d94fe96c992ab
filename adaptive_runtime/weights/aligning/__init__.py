"""Alignment of light, contrast and details to the usual values, image by image, without batches and without steps."""

from adaptive_runtime.weights.aligning.decision import AlignedView, AlignmentDecision
from adaptive_runtime.weights.aligning.images import DEVIATIONS, ImageAlignment
from adaptive_runtime.weights.aligning.session import AlignedSession

__all__ = ["DEVIATIONS", "AlignedSession", "AlignedView", "AlignmentDecision", "ImageAlignment"]
