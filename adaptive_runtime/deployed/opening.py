"""Opening a bundle to serve from it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from adaptive_runtime.adapting import Adaptation, AdaptingOptions, BundleVariants
from adaptive_runtime.adapting_weights import WeightAdaptation, WeightOptions
from adaptive_runtime.bundles import BundledSubNet, OpenBundle
from adaptive_runtime.chains import ChainFormat
from adaptive_runtime.choice import ChoicePolicy, ChoiceRules, Objective
from adaptive_runtime.deployed.model import LOG, Chooser, DeployedModel
from adaptive_runtime.errors import AdaptiveError
from adaptive_runtime.pool import SubNetPool, Variant


def load(
    folder: str | Path,
    budget_ms: float | None = None,
    memory_mib: float | None = None,
    *,
    format: ChainFormat | None = None,
    chooser: Chooser | None = None,
    adapts: bool | AdaptingOptions = False,
    policy: str | ChoiceRules | Callable[[Objective], ChoicePolicy] | None = None,
    first: Variant | None = None,
    key_file: str | Path | None = None,
    prepares: bool = True,
    cache: str | Path | None = None,
    also: str | Path | None = None,
    weights: Literal["statistics"] | WeightOptions | None = None,
) -> DeployedModel:
    """A model that serves from a bundle. AdaptiveError in one line: it is corrupt, foreign, newer, incomplete or not signed.

    budget_ms: the most accurate SubNet whose measured latency is within it serves first; None: the most accurate of all.
    memory_mib: what SubNets may take; None: all that were used stay. format: None: that of the bundle's device. chooser: asked
    before each request what should serve. adapts: while the load changes, the most accurate variant within `budget_ms` and
    `memory_mib` serves; SubNets are loaded ahead as far as there is room. policy: with it the model adapts, by rules as text
    ("battery < 20% -> energy first"), by rules that were read, or by how it switches between variants, as in `AdaptingOptions`;
    None: by the rules of the bundle, where it has some, and of `adapts`. first: what serves first, whatever the
    budget is. key_file: with it the bundle must be signed. prepares: ONNX files are optimised once and kept in `cache`;
    None: in the bundle's folder.
    also: the folder of a search on this device, whose SubNets serve, too; all are compared by the accuracies that it measured.
    weights: the SubNet that serves follows its images by its BatchNorm statistics, while they drift; "statistics": with the
    default options. None: weights stay as they are.
    """
    bundle = OpenBundle.open(folder, key_file, also)
    form = bundle.manifest.own_format if format is None else format
    subnets = [one for one in bundle.manifest.subnets if form in one.nets]
    if not subnets:
        raise AdaptiveError(str(folder), f"has no SubNets in {form}", allowed=", ".join(bundle.manifest.runs))
    place = None if cache is None else Path(cache)
    pool = SubNetPool(bundle, form, memory_mib, LOG.warning, prepares=prepares, cache=place)
    following = None if weights is None else WeightAdaptation(pool, weight_options(weights))
    options = _options(adapts, policy, bundle.manifest.policy)
    if options is None:
        serving = first or Variant(best_within(subnets, budget_ms).digest)
        return DeployedModel(pool, serving, chooser, weights=following)
    limits = options.limits(budget_ms, memory_mib)
    adaptation = Adaptation(BundleVariants.of(bundle.manifest, form), limits, options, running=first)
    return DeployedModel(pool, first or adaptation.first, chooser, adaptation, following)


def weight_options(weights: str | WeightOptions) -> WeightOptions:
    """The options of weights that adapt. AdaptiveError: there is no such way."""
    if isinstance(weights, WeightOptions):
        return weights
    if weights != "statistics":
        raise AdaptiveError("weights", f"'{weights}'", allowed="'statistics', WeightOptions or None")
    return WeightOptions()


def _options(
    adapts: bool | AdaptingOptions,
    policy: str | ChoiceRules | Callable[[Objective], ChoicePolicy] | None,
    bundled: str | None,
) -> AdaptingOptions | None:
    """How the model adapts; None: it does not. bundled: the rules of the bundle, which others replace."""
    if adapts is False and policy is None:
        return None
    options = adapts if isinstance(adapts, AdaptingOptions) else AdaptingOptions()
    if isinstance(policy, str | ChoiceRules):
        options = replace(options, rules=policy)
    elif policy is not None:
        options = replace(options, policy=policy)
    return replace(options, rules=bundled) if options.rules is None else options


def best_within(subnets: list[BundledSubNet], budget_ms: float | None) -> BundledSubNet:
    """The most accurate of some SubNets within a budget; where none is, the fastest."""
    within = [one for one in subnets if budget_ms is None or one.likely_ms <= budget_ms]
    if not within:
        return min(subnets, key=lambda one: one.likely_ms)
    return max(within, key=lambda one: (one.first_accuracy, -one.likely_ms))
