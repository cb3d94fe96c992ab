"""Detection: boxes of objects with their classes, by the heads that `adaptive_runtime.samples.boxes` decodes."""

from tasks.data.problems.detection.record import DETECTION, DETECTION_BY_COCO, Detection
from tasks.data.problems.detection.targets import ABSENT, Rows, flipped, packed, present, within

__all__ = ["ABSENT", "DETECTION", "DETECTION_BY_COCO", "Detection", "Rows", "flipped", "packed", "present", "within"]
