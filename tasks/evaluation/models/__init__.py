"""The user's network: a timm name, an ONNX file, or a Python callable; and the source of its weights."""

from typing import TYPE_CHECKING

from importing import public_names

if TYPE_CHECKING:
    from tasks.evaluation.models.creation import create, load_weights
    from tasks.evaluation.models.origin import (
        NetworkOrigin,
        carry_origin,
        load_part,
        needs_training,
        origin_of,
        remember_origin,
        weights_source,
    )
    from tasks.evaluation.models.settings import ModelSettings
else:
    __getattr__ = public_names(__name__, __file__)
