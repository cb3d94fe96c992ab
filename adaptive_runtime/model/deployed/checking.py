"""A deployed model against the calibration sample of its bundle: this device's answers compared with torch's."""

import numpy as np

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.bundles import BundledSubNet, BundleFormat, BundleManifest
from adaptive_runtime.model.deployed.model import DeployedModel
from adaptive_runtime.pool import Variant


def check(model: DeployedModel) -> dict[Variant, float]:
    """The largest relative difference from the expected answers, for every SubNet and exit in each format.

    AdaptiveError if one is above the bundle's tolerance, or the bundle has no sample. VariantError if one does not run.
    """
    bundle, pool = model.pool.bundle, model.pool
    sample = bundle.calibration()
    if sample is None:
        raise AdaptiveError(str(bundle.folder), "has no calibration sample", next_step="export the bundle again")
    found: dict[Variant, float] = {}
    for (digest, exit), expected_N in sample.answers.items():
        subnet = bundle.manifest.by_digest[digest]
        for form in subnet.formats_among(pool.forms):
            if exit is not None and subnet.nets[form].chain is None:
                continue
            answerer = pool.answerer(Variant(digest, exit, form=form))
            pool.warm(answerer)
            x_NCHW = sample.inputs[subnet.own_sizes]
            whole = answerer.decider is None
            got_NV = answerer.chain.outputs(x_NCHW) if whole else answerer.chain.infer(x_NCHW, answerer.decider).logits
            difference = float(np.abs(got_NV - expected_N.reshape(got_NV.shape)).max() / np.abs(expected_N).max())
            allowed = allowed_difference(bundle.manifest, subnet, form)
            if not difference <= allowed:
                where = f"SubNet {answerer.variant.files}" + ("" if exit is None else f", exit {exit}")
                got = f"answers differ from the expected ones by {difference:.3g}"
                raise AdaptiveError(where, got, allowed=f"{allowed:g}", next_step="export on this device")
            found[answerer.variant] = difference
    return found


def allowed_difference(manifest: BundleManifest, subnet: BundledSubNet, form: BundleFormat) -> float:
    """The largest allowed relative difference of a SubNet's answers in a format from torch's.

    In int8 the exported file itself differs from torch, by the amount in the manifest; the tolerance is only the difference
    between runtimes.
    """
    run = manifest.runs[form]
    return run.tolerance + (subnet.nets[form].relative_difference if run.precision == "int8" else 0.0)
