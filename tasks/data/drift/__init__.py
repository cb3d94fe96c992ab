"""Drift for experiments: corruptions of small images, and streams of labelled images that drift."""

from typing import TYPE_CHECKING

from importing.lazy import public_names

if TYPE_CHECKING:
    from tasks.data.drift.corruptions import CORRUPTIONS, corrupt
    from tasks.data.drift.plans import StreamPlan, plan_stream
    from tasks.data.drift.settings import DriftSettings, StreamKind
    from tasks.data.drift.streams import LabelledImages, StreamBatch, stream
else:
    __getattr__ = public_names(__name__, __file__)

__all__ = [
    "CORRUPTIONS",
    "DriftSettings",
    "LabelledImages",
    "StreamBatch",
    "StreamKind",
    "StreamPlan",
    "corrupt",
    "plan_stream",
    "stream",
]
