"""Trials: SubNets timed with an implementation for each operator, and rules for implementations worth measuring.

Operators that differ only in their sizes form a class. An implementation is worth measuring if it was faster than the
runtime's own choice on the measured operators of the class with the nearest sizes. In a class without measured
operators, every implementation is worth measuring.

The first SubNets are timed with every implementation of their operators, and rules are learned from them. Every other
SubNet is timed once, with a mixture of the implementations that are worth measuring, so that each operator is timed
with each of them. A SubNet is timed again if one of its operators would otherwise miss one.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

import tailor_ir
from profiling_agents.client import ModelJob
from profiling_agents.messages import Format, Measurement, Precision
from solvers.tables import Values
from tailor_ir import Config, OperatorFeature, SuperNet
from tasks.base.artifacts import digest_of
from tasks.evaluation.conversion import ConversionError, ConversionLimits
from tasks.evaluation.executorch.programs import subnet_jobs
from tasks.evaluation.ncnn import files
from tasks.evaluation.ncnn.conversion import convert_operators
from tasks.evaluation.ncnn.files import NcnnFiles
from tasks.measuring.networks import WholeSubNet, ncnn_subnet, onnx_subnet

NEIGHBOURS = 3
WORTH = 0.98
"""Largest expected ratio of an implementation's latency to that of the runtime's own choice at which measuring is worth it."""


@dataclass(frozen=True, slots=True)
class Example:
    """An operator whose latency by an implementation is `ratio` times its latency by the runtime's own choice."""

    feature: OperatorFeature
    implementation: str
    ratio: float


@dataclass(frozen=True, slots=True)
class _Known:
    """Examples of one class and implementation: logarithms of sizes (n, 3), and of ratios (n,)."""

    sizes: Values
    log_ratios: Values

    def ratio(self, sizes: Values) -> float:
        """Geometric mean of the ratios of the nearest examples."""
        distances = np.abs(self.sizes - sizes).sum(axis=1)
        nearest = np.argsort(distances, kind="stable")[:NEIGHBOURS]
        return float(np.exp(self.log_ratios[nearest].mean()))


class ImplementationRules:
    """Rules for all operators, learned from a device's examples."""

    def __init__(self, examples: Sequence[Example]) -> None:
        groups: dict[tuple[Hashable, str], list[Example]] = {}
        for one in examples:
            groups.setdefault((_class_of(one.feature), one.implementation), []).append(one)
        self._known: Mapping[tuple[Hashable, str], _Known] = {
            key: _Known(
                np.array([_sizes(one.feature) for one in found]), np.log(np.array([one.ratio for one in found]))
            )
            for key, found in groups.items()
        }

    def ratio(self, feature: OperatorFeature, implementation: str) -> float:
        """The expected latency of an operator by an implementation, over that by the runtime's own choice; 0 if unknown."""
        known = self._known.get((_class_of(feature), implementation))
        return 0.0 if known is None else known.ratio(_sizes(feature))

    def worth_measuring(self, feature: OperatorFeature, candidates: Sequence[str]) -> tuple[str, ...]:
        """The candidates that are likely faster than the runtime's own choice, the fastest first."""
        ratios = {name: self.ratio(feature, name) for name in candidates}
        return tuple(sorted((name for name in candidates if ratios[name] <= WORTH), key=lambda name: ratios[name]))


def _class_of(feature: OperatorFeature) -> Hashable:
    """Everything that decides the kernel, except the sizes."""
    attributes = {name: value for name, value in feature.attributes if name not in ("group", "pads")}
    groups = dict(feature.attributes).get("group", 1)
    return feature.operator, tuple(sorted(attributes.items(), key=str)), groups == 1


def _sizes(feature: OperatorFeature) -> Values:
    """Logarithms (3,) of the channels read, of the channels written, and of the positions."""
    read, written = feature.input_shapes[0], feature.output_shapes[0]
    positions = float(np.prod(written[2:])) if len(written) > 2 else 1.0
    return np.log2(np.array([read[1], written[1], positions], np.float64))


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
    """Trials of SubNets that were not studied. seen: timings of operators by implementation ("": the runtime's own choice)."""
    features = [{feature.digest: feature for feature in net.operators(config)} for config in configs]
    worth = {
        digest: rules.worth_measuring(feature, candidates.get(digest, ()))
        for own in features
        for digest, feature in own.items()
    }
    last = {digest: at for at, own in enumerate(features) for digest in own}
    for at, (config, own) in enumerate(zip(configs, features, strict=True)):
        first = True
        ends = [digest for digest in own if last[digest] == at]
        while first or not all(seen[digest, name] for digest in ends for name in ("", *worth[digest])):
            names = {digest: _needed(digest, worth[digest], seen) for digest in own}
            seen.update(names.items())
            yield Trial(config, {digest: name for digest, name in names.items() if name})
            first = False
        if at % CHECKED == 0 and (left := _left_out(own, candidates, worth, seen)):
            seen.update(left.items())
            yield Trial(config, left, checks=True)


def _needed(digest: str, worth: Sequence[str], seen: Counter[tuple[str, str]]) -> str:
    """The implementation with the fewest timings of an operator, relative to the target."""
    if not worth:
        return ""
    targets = {"": OWN_TIMES, **{name: OTHER_TIMES if at else BEST_TIMES for at, name in enumerate(worth)}}
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


class SubNetBuilder:
    """Makes SubNets in the device's format and precision; for ncnn it converts each operator only once."""

    def __init__(
        self, net: SuperNet, model_format: Format, limits: ConversionLimits, precision: Precision = "fp32"
    ) -> None:
        self.net = net
        self._format, self._limits, self._precision = model_format, limits, precision
        self._snippets: dict[OperatorFeature, NcnnFiles | ConversionError] = {}

    def implementations(self, operators: Mapping[str, OperatorFeature]) -> dict[str, tuple[str, ...]]:
        """Digest -> implementations besides the runtime's own choice, for the operators that have any."""
        if self._format != "ncnn":
            return {}
        self._convert(list(operators.values()))
        snippets = {digest: self._snippets[feature] for digest, feature in operators.items()}
        found = {digest: files.implementations(one) for digest, one in snippets.items() if isinstance(one, NcnnFiles)}
        return {digest: names for digest, names in found.items() if names}

    def make(self, chunk: Sequence[tuple[str, Trial]]) -> tuple[list[WholeSubNet], list[Measurement]]:
        """The SubNets, and a failed measurement for each trial that cannot be converted."""
        programs: Mapping[str, ModelJob | ConversionError] = {}
        if self._format == "executorch":
            programs = subnet_jobs({key: (self.net, trial.config) for key, trial in chunk}, self._limits)
        elif self._format == "ncnn":
            self._convert([feature for _, trial in chunk for feature in self.net.operators(trial.config)])
        made: list[WholeSubNet] = []
        failures: list[Measurement] = []
        for key, trial in chunk:
            try:
                made.append(self._made(key, trial, programs.get(key)))
            except ConversionError as error:
                failures.append(Measurement.failed(key, str(error)))
        return made, failures

    def _made(self, key: str, trial: Trial, program: ModelJob | ConversionError | None) -> WholeSubNet:
        """One SubNet, for ncnn from the files of its operators. program: its outcome, for ExecuTorch. ConversionError."""
        if isinstance(program, ConversionError):
            raise program
        if program is not None:
            return WholeSubNet(self.net.placed_operators(trial.config), program)
        if self._format == "onnx":
            return onnx_subnet(self.net, key, trial.config, self._precision)
        snippets = {}
        for feature in self.net.operators(trial.config):
            one = self._snippets[feature]
            if isinstance(one, ConversionError):
                raise ConversionError(f"{feature.operator} {feature.digest}: {one}")
            snippets[feature] = files.with_implementation(one, trial.implementations.get(feature.digest, ""))
        return ncnn_subnet(self.net, key, trial.config, snippets)

    def _convert(self, features: Sequence[OperatorFeature]) -> None:
        new = [feature for feature in dict.fromkeys(features) if feature not in self._snippets]
        models = [tailor_ir.operator_model(feature) for feature in new]
        self._snippets.update(zip(new, convert_operators(models, self._limits), strict=True))
