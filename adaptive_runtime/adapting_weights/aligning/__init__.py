"""Light, contrast and details that are brought back to what is usual, image by image: without a batch, and without a step."""

from adaptive_runtime.adapting_weights.aligning.decision import AlignedView, AlignmentDecision
from adaptive_runtime.adapting_weights.aligning.images import DEVIATIONS, ImageAlignment
from adaptive_runtime.adapting_weights.aligning.session import AlignedSession

__all__ = ["DEVIATIONS", "AlignedSession", "AlignedView", "AlignmentDecision", "ImageAlignment"]
