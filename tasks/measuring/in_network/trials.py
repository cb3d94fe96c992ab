"""Trials: SubNets that are timed with an implementation for each of their operators.

The first SubNets are timed with every implementation of their operators, and rules are learned from them
(`tasks.measuring.in_network.rules`). Every other SubNet is timed once, with a mixture of the implementations that are worth
measuring, so that each operator is timed with each of them. A SubNet is timed again if one of its operators would otherwise
miss one.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from tailor_ir import Config, OperatorFeature, SuperNet
from tasks.base.artifacts import digest_of
from tasks.measuring.in_network.rules import ImplementationRules

Names = Mapping[str, str]
"""Implementations by operator (digest)."""
CandidateNames = Mapping[str, Sequence[str]]
"""Implementations that operators (by digest) may have besides the runtime's own choice, ""."""

STUDIED, FEWEST_STUDIED = 0.12, 6
"""Share, and smallest number, of the SubNets that are timed with every implementation."""
CHECKED = 10
"""One in this many SubNets is also timed with implementations that the rules leave out."""
OWN_TIMES, BEST_TIMES, OTHER_TIMES = 3, 8, 2
"""Target numbers of timings of an operator with the runtime's own choice, with the likely best implementation, with others."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A SubNet to be timed. Operators without a name in `implementations` run by the runtime's own choice.

    checks: its implementations are left out by the rules. repeat: number of the timing among equal timings.
    """

    config: Config
    implementations: Names = field(default_factory=lambda: MappingProxyType({}))
    checks: bool = False
    repeat: int = 0

    def key(self, net: SuperNet) -> str:
        """The name of the trial, unique within a SuperNet."""
        own = net.space.digest(self.config)
        named = f"{own} {digest_of(dict(self.implementations))[:12]}" if self.implementations else own
        return f"{named} {self.repeat}" if self.repeat else named


def studied(net: SuperNet, configs: Sequence[Config], candidates: CandidateNames) -> tuple[list[Trial], list[Config]]:
    """Trials of the first SubNets with every implementation, and the remaining SubNets.

    The n-th further trial of a SubNet has the n-th candidate of every operator that has so many candidates. If there are few
    SubNets, such as the only SubNet of a network without variables, all trials are repeated.
    """
    count = min(len(configs), max(FEWEST_STUDIED, round(STUDIED * len(configs))))
    repeats = -(-FEWEST_STUDIED // max(count, 1))
    trials: list[Trial] = []
    for config in configs[:count]:
        own = {f.digest: candidates[f.digest] for f in net.operators(config) if f.digest in candidates}
        trials.append(Trial(config))
        for number in range(max(map(len, own.values()), default=0)):
            trials.append(
                Trial(config, {digest: names[number] for digest, names in own.items() if number < len(names)})
            )
    return [replace(trial, repeat=number) for number in range(repeats) for trial in trials], list(configs[count:])


def mixed(
    net: SuperNet,
    configs: Sequence[Config],
    candidates: CandidateNames,
    rules: ImplementationRules,
    seen: Counter[tuple[str, str]],
) -> Iterator[Trial]:
    """Trials of the SubNets that were not studied.

    seen: how often each operator was timed by each implementation ("": the runtime's own choice).
    """
    features = [{feature.digest: feature for feature in net.operators(config)} for config in configs]
    worth = {
        digest: rules.worth_measuring(feature, candidates.get(digest, ()))
        for own in features
        for digest, feature in own.items()
    }
    last = {digest: at for at, own in enumerate(features) for digest in own}
    for at, (config, own) in enumerate(zip(configs, features, strict=True)):
        first = True
        while first or any(last[digest] == at and _unseen(digest, worth[digest], seen) for digest in own):
            names = {digest: _needed(digest, worth[digest], seen) for digest in own}
            seen.update(names.items())
            yield Trial(config, {digest: name for digest, name in names.items() if name})
            first = False
        if at % CHECKED == 0 and (left := _left_out(own, candidates, worth, seen)):
            seen.update(left.items())
            yield Trial(config, left, checks=True)


def _targets(worth: Sequence[str]) -> dict[str, int]:
    """Target number of timings of an operator, by implementation."""
    return {"": OWN_TIMES, **{name: OTHER_TIMES if at else BEST_TIMES for at, name in enumerate(worth)}}


def _unseen(digest: str, worth: Sequence[str], seen: Counter[tuple[str, str]]) -> bool:
    return any(not seen[digest, name] for name in ("", *worth))


def _needed(digest: str, worth: Sequence[str], seen: Counter[tuple[str, str]]) -> str:
    """The implementation with the fewest timings of an operator, relative to the target."""
    if not worth:
        return ""
    targets = _targets(worth)
    return min(targets, key=lambda name: (seen[digest, name] / targets[name], -targets[name]))


def _left_out(
    own: Mapping[str, OperatorFeature],
    candidates: CandidateNames,
    worth: CandidateNames,
    seen: Counter[tuple[str, str]],
) -> dict[str, str]:
    """For operators of a SubNet, one implementation each that the rules leave out and that was not timed yet."""
    left = {
        digest: [name for name in candidates.get(digest, ()) if name not in worth[digest] and not seen[digest, name]]
        for digest in own
    }
    return {digest: names[0] for digest, names in left.items() if names}
