"""The row of one SubNet in a bundle's manifest, from its model card and its policy."""

from collections.abc import Mapping
from itertools import accumulate

from adaptive_runtime.bundle.bundles import (
    BundledExit,
    BundledNet,
    BundledSubNet,
    BundleFormat,
    EarlyAnswers,
    SubNetLatency,
    SubNetMemory,
)
from adaptive_runtime.bundle.chains import ChainManifest, ImagePreparation, InputsPreparation, SamplePreparation
from adaptive_runtime.exits import Thresholds
from adaptive_runtime.samples.texts import TextPreparation
from profiling_agents.messages import MIB
from tailor_ir import SuperNet
from tasks.base.schemas.exports import Card, Preparation
from tasks.exits.policies import SubnetPolicy

WEIGHT_BYTES = 4


def subnet_row(
    net: SuperNet,
    card: Card,
    nets: Mapping[BundleFormat, BundledNet],
    chain: ChainManifest | None,
    thresholds: Thresholds | None,
    policy: SubnetPolicy | None,
) -> BundledSubNet:
    """The row of a SubNet. chain: its timed segments; None: it passes no exits. policy: data on these exits."""
    activations_bytes = net.batch * net.peak_activation_bytes(card.config)
    return BundledSubNet(
        digest=card.digest,
        config=dict(card.config),
        input_shape=card.input_shape,
        preparation=told_preparation(card.preparation),
        nets=dict(nets),
        macs=card.macs,
        parameters=card.parameters,
        accuracy=card.accuracy,
        latency=_latency(card),
        predicted_ms=card.predicted_ms,
        energy_mj=card.latency.energy_mj,
        memory=SubNetMemory(weights_mib=WEIGHT_BYTES * card.parameters / MIB, activations_mib=activations_bytes / MIB),
        exits=() if chain is None else _exits(chain, thresholds, policy),
        thresholds=thresholds,
        early=None if thresholds is None else _early(policy),
        adapted=None if card.adapted is None else card.adapted.sha256,
    )


def told_preparation(prepared: Preparation | TextPreparation | InputsPreparation) -> SamplePreparation:
    """The preparation of a model card in the form of manifests."""
    if isinstance(prepared, TextPreparation | InputsPreparation):
        return prepared
    return ImagePreparation.model_validate(prepared.to_json())


def _latency(card: Card) -> SubNetLatency | None:
    found = card.latency
    if found.p50_ms is None or found.p90_ms is None or found.spread is None:
        return None
    return SubNetLatency(p50_ms=found.p50_ms, p90_ms=found.p90_ms, spread=found.spread, n=found.n, noisy=found.noisy)


def _exits(chain: ChainManifest, thresholds: Thresholds | None, policy: SubnetPolicy | None) -> tuple[BundledExit, ...]:
    known = {} if policy is None else {row.exit: row.accuracy for row in policy.exits}
    bars = () if thresholds is None else thresholds.thresholds
    macs = accumulate(segment.macs for segment in chain.segments)
    return tuple(
        BundledExit(
            exit=name,
            macs=until,
            latency_ms=until_ms,
            accuracy=known.get(name),
            threshold=bars[at] if at < len(bars) else None,
        )
        for at, (name, until, until_ms) in enumerate(zip(chain.exits, macs, chain.until_ms, strict=True))
    )


def _early(policy: SubnetPolicy | None) -> EarlyAnswers | None:
    if policy is None or policy.tested is None:
        return None
    return EarlyAnswers.model_validate({name: getattr(policy.tested, name) for name in EarlyAnswers.model_fields})
