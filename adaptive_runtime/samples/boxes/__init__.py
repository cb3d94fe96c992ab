"""Boxes of objects from a detector's raw outputs, in numpy: anchors, decoding, and non-maximum suppression."""

from adaptive_runtime.samples.boxes.decoding import Detections, detect
from adaptive_runtime.samples.boxes.heads import FCOS, HEADS, RETINANET, SSDLITE, DetectionHead, head_of
from adaptive_runtime.samples.boxes.overlap import iou, suppressed

__all__ = [
    "FCOS",
    "HEADS",
    "RETINANET",
    "SSDLITE",
    "DetectionHead",
    "Detections",
    "detect",
    "head_of",
    "iou",
    "suppressed",
]
