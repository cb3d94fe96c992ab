"""From a user's network to the IR's graph: traced or loaded, constants folded, forms normalised."""

from onnx_graphsurgeon.logger import G_LOGGER

G_LOGGER.severity = G_LOGGER.CRITICAL + 1  # its messages are of its own graphs; what it raises still comes through
