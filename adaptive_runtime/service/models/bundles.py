"""A bundle as a model that is served."""

import hashlib
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from adaptive_runtime.adapting import AdaptingOptions
from adaptive_runtime.adapting_weights import WeightOptions
from adaptive_runtime.bundles import BUNDLE_FILE
from adaptive_runtime.bundles.manifest import AGAIN
from adaptive_runtime.deployed import DeployedModel, load
from adaptive_runtime.message_files import read_bytes
from adaptive_runtime.pool import Variant
from adaptive_runtime.service.inference import InferenceFormat
from adaptive_runtime.service.load import AdaptedLoad, LoadSource, LoadWatch
from adaptive_runtime.service.models.crashes import crashes_recorded
from adaptive_runtime.service.models.served import ServedModel
from adaptive_runtime.service.options import VERSION_DIGITS, BundleOptions
from adaptive_runtime.service.remembered import ChoiceMemory


@contextmanager
def bundle_served(options: BundleOptions) -> Iterator[ServedModel]:
    """The model, with what served last, where that is remembered and still works. AdaptiveError: it cannot be loaded."""
    memory = None if options.state is None else ChoiceMemory(options.state, _digest(options.bundle, options.format))
    with _crashes(options) as crashed, _loaded(options, memory, crashed) as model, _load_of(model, options) as source:
        yield ServedModel(
            infer=lambda x_NCHW, until_s, subnet: model.infer(x_NCHW, 1e3 * (until_s - time.monotonic()), subnet),
            subnets=tuple(dict.fromkeys(one.digest for one in model.pool.whole_variants)),
            state=lambda: model.state,
            works=lambda: bool(model.subnets),
            load=source,
            format=InferenceFormat.of(model),
            version=_digest(options.bundle)[:VERSION_DIGITS],
            memory=memory,
        )


def _crashes(options: BundleOptions) -> AbstractContextManager[Mapping[Variant, str]]:
    """SubNets that have crashed, where a service remembers that."""
    return nullcontext({}) if options.state is None else crashes_recorded(options.state, _digest(options.bundle))


def _loaded(options: BundleOptions, memory: ChoiceMemory | None, crashed: Mapping[Variant, str]) -> DeployedModel:
    adapting = AdaptingOptions(decisions=options.decisions, sensors_root=options.sensors_root)
    return load(
        options.bundle,
        options.budget_ms,
        options.memory_mib,
        format=options.format,
        adapts=adapting if options.adapts or options.policy is not None else False,
        policy=options.policy,
        first=None if memory is None else memory.read(),
        key_file=options.key_file,
        cache=options.cache,
        also=options.also,
        weights=None if options.weights is None else WeightOptions(state=options.state),
        taken_out=crashed,
    )


@contextmanager
def _load_of(model: DeployedModel, options: BundleOptions) -> Iterator[LoadSource]:
    """What is known of the load, until the end of the block."""
    if model.adaptation is not None:
        yield AdaptedLoad(model.adaptation)
        return
    with LoadWatch(options.sensors_root).running() as watch:
        yield watch


def _digest(bundle: Path, form: str | None = None) -> str:
    """Of the manifest, and of the format that was asked for: another format may have other SubNets."""
    return hashlib.sha256(read_bytes(bundle / BUNDLE_FILE, AGAIN) + (form or "").encode()).hexdigest()
