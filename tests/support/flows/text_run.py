"""The words of a run of a small text encoder, whose engine is tuned."""

from tests.support.flows.tiny import TINY

LENGTH, SHORTER = 16, 8
OWN = (
    "model=callable",
    "model.name=conf.networks.text_encoder:network",
    "model.options={width:16,heads:2,depth:2,expand:2}",
    "data=texts",
    "data.images=240",
    f"data.resolution={LENGTH}",
    f"space.sequence_length=[{SHORTER},{LENGTH}]",
    "space.expand_ratio=[1,2]",
    "export.bundle=true",
)
UNTUNED = (*OWN, *(word for word in TINY if not word.startswith(("model.name", "data", "space"))))
TUNED = (
    *UNTUNED,
    "runtime_options.tune=true",
    "runtime_options.rounds=3",
    "runtime_options.random_subnets=1",
    "runtime_options.measure.time_cap_ms=3",
    "runtime_options.measure.patience=0",
    "device.onnxruntime.runtime_options.graph=basic",
)
"""One choice is fixed, so that what is chosen is never what the runtime does by itself."""
