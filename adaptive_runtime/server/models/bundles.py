"""A bundle as a served model."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path

from adaptive_runtime.base.message_files import read_bytes
from adaptive_runtime.base.weight_options import WeightOptions
from adaptive_runtime.bundle.bundles import BUNDLE_FILE, FOUND_FILE, OpenBundle
from adaptive_runtime.bundle.bundles.manifest import AGAIN
from adaptive_runtime.model.adapting import AdaptingOptions
from adaptive_runtime.model.deployed import DeployedModel, load
from adaptive_runtime.pool import Variant
from adaptive_runtime.server.inference import InferenceFormat
from adaptive_runtime.server.load import AdaptedLoad, LoadSource, LoadWatch
from adaptive_runtime.server.models.crashes import crashes_recorded
from adaptive_runtime.server.models.joining import LOG, CurrentModel, FoundFile, joined_by
from adaptive_runtime.server.models.placements import placed_devices
from adaptive_runtime.server.models.served import ServedModel
from adaptive_runtime.server.options import VERSION_DIGITS, BundleOptions
from adaptive_runtime.server.remembered import ChoiceMemory


def bundle_served(options: BundleOptions) -> AbstractContextManager[ServedModel]:
    """The model, which starts with the remembered last choice if that still works.

    AdaptiveError: an invalid bundle, raised at once; later, a bundle that cannot be loaded.
    """
    OpenBundle.open(options.bundle, options.key_file)
    return _served(options)


@contextmanager
def _served(options: BundleOptions) -> Iterator[ServedModel]:
    memory = None if options.state is None else ChoiceMemory(options.state, _digest(options.bundle, options.format))
    first = None if memory is None else memory.read()
    with (
        _crashes(options) as crashed,
        _current(options, first, crashed) as current,
        _load_of(current, options) as source,
    ):
        yield ServedModel(
            infer=current.infer,
            subnets=lambda: tuple(dict.fromkeys(one.digest for one in current.model.pool.whole_variants)),
            state=lambda: current.model.state,
            works=lambda: bool(current.model.subnets),
            load=source,
            format=InferenceFormat.of(current.model),
            version=_digest(options.bundle)[:VERSION_DIGITS],
            memory=memory,
            devices=placed_devices(lambda: current.model),
        )


def _crashes(options: BundleOptions) -> AbstractContextManager[Mapping[Variant, str]]:
    """SubNets that have crashed, if the service remembers them."""
    return nullcontext({}) if options.state is None else crashes_recorded(options.state, _digest(options.bundle))


@contextmanager
def _current(options: BundleOptions, first: Variant | None, crashed: Mapping[Variant, str]) -> Iterator[CurrentModel]:
    """The model, which is replaced when a search has found SubNets. A model with adapting weights is not replaced."""
    found = None if options.also is None else FoundFile(options.also)
    also = None if found is None or not found.is_new() else found.folder
    if found is not None and also is None:
        LOG.warning("'%s' has no %s yet: its SubNets join when a search has written it", found.folder, FOUND_FILE)
    current = CurrentModel(_loaded(options, also, first=first, taken_out=crashed))
    with ExitStack() as stack:
        stack.callback(lambda: current.model.close())
        if found is not None and options.weights is None:
            folder = found.folder
            stack.enter_context(joined_by(found, current, lambda: _loaded(options, folder, after=current.model)))
        yield current


def _loaded(
    options: BundleOptions,
    also: Path | None,
    first: Variant | None = None,
    taken_out: Mapping[Variant, str] | None = None,
    after: DeployedModel | None = None,
) -> DeployedModel:
    """A loaded model; a model with `after` continues the record of that model's decisions."""
    decisions = options.decisions if after is None else None
    weights = None
    if options.weights is not None:
        weights = WeightOptions(method=options.weights, state=options.state, align=not options.unaligned)
    adapting = AdaptingOptions(decisions=decisions, sensors_root=options.sensors_root, hit_rate=options.hit_rate)
    return load(
        options.bundle,
        options.budget_ms,
        options.memory_mib,
        format=options.format,
        adapts=adapting if options.adapts or options.policy is not None else False,
        policy=options.policy,
        first=first,
        key_file=options.key_file,
        cache=options.cache,
        also=also,
        weights=weights,
        taken_out=taken_out or {},
        after=after,
        devices=options.devices,
    )


@contextmanager
def _load_of(current: CurrentModel, options: BundleOptions) -> Iterator[LoadSource]:
    """The source of the load, until the end of the block."""
    if current.model.adaptation is not None:
        yield AdaptedLoad(lambda: current.model.adaptation)
        return
    with LoadWatch(options.sensors_root, hit_rate=options.hit_rate).running() as watch:
        yield watch


def _digest(bundle: Path, form: str | None = None) -> str:
    """Digest of the manifest and of the requested format: another format may have other SubNets."""
    return hashlib.sha256(read_bytes(bundle / BUNDLE_FILE, AGAIN) + (form or "").encode()).hexdigest()
