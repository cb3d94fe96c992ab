"""Facts inside an exported file about itself: the same in every format that can store them."""

import json
from importlib.metadata import version
from typing import Any

import onnx

from tasks.base.artifacts import json_bytes
from tasks.base.schemas.exports import Card

PRODUCER = "autotailor"
ARCHIVE_FILE = "autotailor.json"
"""The extra file of a torch archive."""
MOST_CLASSES_BYTES = 64 * 1024
"""Limit for class names as JSON in an ONNX file; those of ImageNet fit."""


def facts(card: Card) -> dict[str, Any]:
    """The facts by which an application uses a file without its model card. They depend only on the card and our version."""
    source = card.made_from
    return {
        "version": version(PRODUCER),
        "network": source.network["name"],
        "weights": source.network["weights"],
        "licence": source.network["licence"],
        "supernet": source.digests.get("SuperNet"),
        "digest": card.digest,
        "config": card.config,
        "classes": list(card.classes),
        **({"problem": card.problem} if "problem" in card.model_fields_set else {}),
        **({} if card.metric is None else {"metric": card.metric}),
        **({} if card.decoding is None else {"decoding": card.decoding.to_json()}),
        **({} if card.adapted is None else {"adapted": card.adapted.sha256}),
        **({} if card.adapted is None else {"input_deviations": card.adapted.input_deviations}),
        **card.preparation.model_dump(mode="json", exclude_unset=True),
        "accuracy": card.accuracy,
        "predicted_ms": card.predicted_ms,
        "measured_ms": card.latency.p50_ms,
        "batch": card.batch,
        "device": card.device.to_json(),
        "engine": {} if card.engine is None else card.engine.choices,
    }


def fact_file(card: Card) -> bytes:
    """All facts as JSON: the file beside an ncnn model, the extra file of a torch archive."""
    return json_bytes(facts(card))


def properties(card: Card) -> dict[str, str]:
    """The facts as texts; values other than strings as JSON.

    Class names of more than `MOST_CLASSES_BYTES` are left out, and `classes_left_out` is set. Unknown facts are left out, too.
    """
    known = {name: value for name, value in facts(card).items() if value is not None}
    names = _text(known["classes"])
    if len(names.encode()) > MOST_CLASSES_BYTES:
        del known["classes"]
        known["classes_left_out"] = (
            f"{len(card.classes)} names, more than {MOST_CLASSES_BYTES} bytes: see the model card"
        )
    return {f"{PRODUCER}.{name}": _text(value) for name, value in known.items()}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)


def tell(model: bytes, card: Card) -> bytes:
    """An ONNX model with the facts as its `metadata_props`. Tensors in other files stay there."""
    loaded = onnx.load_from_string(model)
    loaded.producer_name, loaded.producer_version = PRODUCER, version(PRODUCER)
    onnx.helper.set_model_props(loaded, properties(card))
    content: bytes = loaded.SerializeToString()
    return content
