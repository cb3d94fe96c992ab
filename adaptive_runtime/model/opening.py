"""A deployed model against the calibration sample of its bundle: this device's answers compared with torch's.

The formats in which the SubNets of a bundle serve on this device.

Opening a bundle to serve from it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import get_args

import numpy as np

from adaptive_runtime.base.devices import DeviceAddress
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.weight_options import WeightMethod, WeightOptions
from adaptive_runtime.bundle.bundles import CHAIN_FORMATS, BundledSubNet, BundleFormat, BundleManifest, OpenBundle
from adaptive_runtime.bundle.chains import require_runtime
from adaptive_runtime.model.adapting import Adaptation
from adaptive_runtime.model.deployed import Chooser, DeployedModel
from adaptive_runtime.model.options import AdaptingOptions
from adaptive_runtime.model.serving import LOG
from adaptive_runtime.model.variants import BundleVariants
from adaptive_runtime.offload.rows import PlacedSubNets
from adaptive_runtime.policy import ChoicePolicy, ChoiceRules, Objective
from adaptive_runtime.pool import SubNetPool, Variant
from adaptive_runtime.weights import WeightAdaptation, load_method


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


def serving_formats(
    bundle: OpenBundle, wanted: BundleFormat | None, tell: Callable[[str], None]
) -> tuple[BundleFormat, ...]:
    """The wanted format alone; None: the formats with known latencies here, the one in which they were measured first.

    Formats whose runtime is not installed are left out; `tell` receives one line for each runtime. AdaptiveError if no format
    is
    left, or the bundle has no SubNets in the wanted one.
    """
    manifest, where = bundle.manifest, str(bundle.folder)
    asked = manifest.known_formats if wanted is None else (wanted,)
    there = {form for subnet in manifest.subnets for form in subnet.nets}
    if not (asked := tuple(form for form in asked if form in there)):
        missing = wanted or manifest.own_format
        raise AdaptiveError(where, f"has no SubNets in {missing}", allowed=", ".join(manifest.runs))
    missing_runtimes: dict[str, list[BundleFormat]] = {}
    for form in asked:
        try:
            require_runtime(CHAIN_FORMATS[form], where)
        except AdaptiveError as error:
            missing_runtimes.setdefault(str(error), []).append(form)
    left_out = {form for forms in missing_runtimes.values() for form in forms}
    if len(left_out) == len(asked):
        require_runtime(CHAIN_FORMATS[asked[0]], where)
    for line, forms in missing_runtimes.items():
        tell(f"SubNets in {', '.join(forms)} are left out: {line}")
    return tuple(form for form in asked if form not in left_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Options of `load`.

    folder: of the bundle. budget_ms: the most accurate SubNet whose measured latency is within it serves first; None: the most
    accurate of all. memory_mib: memory for SubNets; None: all used ones stay. format: in which SubNets serve; None: all formats
    in which they were measured on the bundle's device and whose runtime is installed here. chooser: asked before each request
    for the variant to serve. adapts: while the load changes, the most accurate variant within `budget_ms` and `memory_mib`
    serves; SubNets are loaded ahead as far as memory allows. policy: makes the model adapt, by rules as text or parsed, or by a
    function that makes the switching policy, as in `AdaptingOptions`; None: by the rules of the bundle, if any, and `adapts`.
    first: the first variant, whatever the budget; a warning is logged if it cannot serve. key_file: requires a signed bundle.
    prepares: ONNX files are optimised once and kept in `cache`; None: in the bundle's folder. also: the folder of a search on
    this device, whose SubNets serve, too, by the accuracies that it measured, in the first format only. weights: the serving
    SubNet adapts to its images while they drift, in the first format only, by a `WeightOptions.method`; None: weights stay
    fixed. taken_out: quarantined whole SubNets, each with one line of reason, if the pool has them. after: the model that this
    one replaces: its serving variant serves first, and its memory counts for `memory_mib`. devices: by the names of the
    bundle's plans; a model that adapts chooses among SubNets split over them, too.
    """

    folder: str | Path
    budget_ms: float | None = None
    memory_mib: float | None = None
    format: BundleFormat | None = None
    chooser: Chooser | None = None
    adapts: bool | AdaptingOptions = False
    policy: str | ChoiceRules | Callable[[Objective], ChoicePolicy] | None = None
    first: Variant | None = None
    key_file: str | Path | None = None
    prepares: bool = True
    cache: str | Path | None = None
    also: str | Path | None = None
    weights: WeightMethod | WeightOptions | None = None
    taken_out: Mapping[Variant, str] = field(default_factory=dict)
    after: DeployedModel | None = None
    devices: Mapping[str, DeviceAddress] = field(default_factory=dict)

    @property
    def serves_first_format_only(self) -> bool:
        """Whether SubNets serve in the first format only."""
        return self.also is not None or self.weights is not None

    def adapting(self, bundled: str | None) -> AdaptingOptions | None:
        """The options of adaptation; None: the model does not adapt. bundled: the rules of the bundle, which others replace."""
        if self.adapts is False and self.policy is None:
            return None
        options = self.adapts if isinstance(self.adapts, AdaptingOptions) else AdaptingOptions()
        if isinstance(self.policy, str | ChoiceRules):
            options = replace(options, rules=self.policy)
        elif self.policy is not None:
            options = replace(options, policy=self.policy)
        return replace(options, rules=bundled) if options.rules is None else options

    def taking_over(self) -> "LoadOptions":
        """The same options with those that a model takes over from the one that it replaces."""
        if self.after is None:
            return self
        first, taken_out = self.first or self.after.state.serving, {**self.after.taken_out, **self.taken_out}
        return replace(self, first=first, taken_out=taken_out)


def load(
    folder: str | Path,
    budget_ms: float | None = None,
    memory_mib: float | None = None,
    *,
    format: BundleFormat | None = None,
    chooser: Chooser | None = None,
    adapts: bool | AdaptingOptions = False,
    policy: str | ChoiceRules | Callable[[Objective], ChoicePolicy] | None = None,
    first: Variant | None = None,
    key_file: str | Path | None = None,
    prepares: bool = True,
    cache: str | Path | None = None,
    also: str | Path | None = None,
    weights: WeightMethod | WeightOptions | None = None,
    taken_out: Mapping[Variant, str] = MappingProxyType({}),
    after: DeployedModel | None = None,
    devices: Mapping[str, DeviceAddress] = MappingProxyType({}),
) -> DeployedModel:
    """A model that serves from a bundle. AdaptiveError in one line: it is corrupt, foreign, newer, incomplete or not signed.

    The parameters are the fields of `adaptive_runtime.model.opening.LoadOptions`, which explains them.
    """
    options = LoadOptions(
        folder=folder,
        budget_ms=budget_ms,
        memory_mib=memory_mib,
        format=format,
        chooser=chooser,
        adapts=adapts,
        policy=policy,
        first=first,
        key_file=key_file,
        prepares=prepares,
        cache=cache,
        also=also,
        weights=weights,
        taken_out=taken_out,
        after=after,
        devices=devices,
    )
    return loaded_with(options)


def loaded_with(options: LoadOptions) -> DeployedModel:
    """The model of `load` for these options."""
    bundle = OpenBundle.open(options.folder, options.key_file, options.also)
    method = None if options.weights is None else load_method(weight_options(options.weights))
    forms = serving_formats(bundle, options.format, LOG.warning)
    pool = _pool(bundle, forms[:1] if options.serves_first_format_only else forms, options)
    options = options.taking_over()
    first = None if options.first is None else _possible(pool, options.first)
    following = None if method is None else WeightAdaptation(pool, method)
    adapting = options.adapting(bundle.manifest.policy)
    with _deciding(pool, replace(options, first=first), adapting) as (adaptation, placed):
        serving = first or (_best_within(pool, options.budget_ms) if adaptation is None else adaptation.first)
        return DeployedModel(pool, serving, options.chooser, adaptation, following, options.taken_out, placed)


def _pool(bundle: OpenBundle, forms: Sequence[BundleFormat], options: LoadOptions) -> SubNetPool:
    """The pool of SubNets in some formats. The memory of a replaced model counts."""
    return SubNetPool(
        bundle,
        tuple(forms),
        options.memory_mib,
        LOG.warning,
        prepares=options.prepares,
        cache=None if options.cache is None else Path(options.cache),
        start_mib=None if options.after is None else options.after.pool.start_mib,
    )


@contextmanager
def _deciding(
    pool: SubNetPool, options: LoadOptions, adapting: AdaptingOptions | None
) -> Iterator[tuple[Adaptation | None, PlacedSubNets | None]]:
    """The adaptation, and SubNets over devices. Both are ended if the block fails; otherwise they end with its model.

    adapting: None: no adaptation.
    """
    _check_devices(options, adapting)
    with ExitStack() as stack:
        placed, adaptation = _placed(pool, options.devices, stack), None
        if adapting is not None:
            variants = BundleVariants.of(pool.bundle.manifest, *pool.forms, placed=pool.placed)
            limits = adapting.limits(options.budget_ms, options.memory_mib)
            adaptation = Adaptation(variants, limits, adapting, running=options.first, placed=placed)
            stack.callback(adaptation.stop)
        yield adaptation, placed
        stack.pop_all()


def _placed(pool: SubNetPool, devices: Mapping[str, DeviceAddress], stack: ExitStack) -> PlacedSubNets | None:
    """SubNets over devices, registered with the pool; None if no devices are given."""
    if not devices:
        return None
    placed = PlacedSubNets.open(pool.bundle, devices)
    stack.callback(placed.close)
    pool.placed = {digest: one.runs for digest, one in placed.subnets.items()}
    return placed


def _check_devices(options: LoadOptions, adapting: AdaptingOptions | None) -> None:
    """Raise AdaptiveError in one line if other devices cannot take part."""
    if options.devices and adapting is None:
        got, next_step = "the model does not adapt", "let it adapt, or leave devices out"
        raise AdaptiveError("devices", got, next_step=next_step)
    if options.devices and options.also is not None:
        got = "SubNets of a search on this device, which have no plans"
        raise AdaptiveError("devices", got, allowed="a bundle alone", next_step="leave one of them out")


def weight_options(weights: str | WeightOptions) -> WeightOptions:
    """The options of weight adaptation. AdaptiveError for an unknown method."""
    if isinstance(weights, WeightOptions):
        return weights
    if weights not in get_args(WeightMethod):
        allowed = f"{', '.join(repr(one) for one in get_args(WeightMethod))}, WeightOptions or None"
        raise AdaptiveError("weights", f"'{weights}'", allowed=allowed)
    return WeightOptions.model_validate({"method": weights})


def _possible(pool: SubNetPool, first: Variant) -> Variant | None:
    """The variant by the pool's name; None, with a warning in the log, if the pool does not have it."""
    try:
        return pool.answerer(first).variant
    except AdaptiveError as error:
        LOG.warning("%s; what serves first is chosen anew", error)
        return None


def _best_within(pool: SubNetPool, budget_ms: float | None) -> Variant:
    """The most accurate whole SubNet within a budget; if none is within it, the fastest."""
    known = [(one, pool.answerer(one).figures) for one in pool.whole_variants]
    within = [pair for pair in known if budget_ms is None or pair[1].latency_ms <= budget_ms]
    if not within:
        return min(known, key=lambda pair: pair[1].latency_ms)[0]
    return max(within, key=lambda pair: (pair[1].first_accuracy, -pair[1].latency_ms))[0]
