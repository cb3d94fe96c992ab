"""Convert a user's network to the IR's graph: trace or load it, fold constants, normalise forms."""

from onnx_graphsurgeon.logger import G_LOGGER

G_LOGGER.severity = G_LOGGER.CRITICAL + 1  # silences messages on internal graphs; its exceptions still come through
