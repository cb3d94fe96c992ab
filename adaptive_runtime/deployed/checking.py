"""A deployed model beside the calibration sample of its bundle: what this device computes, and what torch has computed."""

import numpy as np

from adaptive_runtime.deployed.model import DeployedModel
from adaptive_runtime.errors import AdaptiveError
from adaptive_runtime.pool import Variant


def check(model: DeployedModel) -> dict[Variant, float]:
    """The largest difference from the expected answers of every SubNet and exit, over the largest value.

    AdaptiveError: one is above the bundle's tolerance, or the bundle has no sample. VariantError: one does not run.
    """
    bundle, pool = model.pool.bundle, model.pool
    sample = bundle.calibration()
    if sample is None:
        raise AdaptiveError(str(bundle.folder), "has no calibration sample", next_step="export the bundle again")
    allowed = bundle.manifest.runs[pool.form].tolerance
    found: dict[Variant, float] = {}
    for (digest, exit), expected_NK in sample.answers.items():
        subnet = bundle.manifest.by_digest[digest]
        if pool.form not in subnet.nets:
            continue
        variant = Variant(digest, exit)
        answerer = pool.answerer(variant)
        pool.warm(answerer)
        logits_NK = answerer.chain.infer(sample.inputs[subnet.input_shape[1:]], answerer.decider).logits
        difference = float(np.abs(logits_NK - expected_NK).max() / np.abs(expected_NK).max())
        if not difference <= allowed:
            where = f"SubNet {digest}" + ("" if exit is None else f", exit {exit}")
            got = f"answers differ from the expected ones by {difference:.3g}"
            raise AdaptiveError(where, got, allowed=f"{allowed:g}", next_step="export on this device")
        found[variant] = difference
    return found
