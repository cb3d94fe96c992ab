"""Images with boxes, from the user's files: COCO's JSON, or Pascal VOC's XML."""

from tasks.data.boxes.coco import open_coco
from tasks.data.boxes.voc import open_voc

__all__ = ["open_coco", "open_voc"]
