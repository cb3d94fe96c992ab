"""Latencies of a night: operators alone and SubNets as a whole, each loaded and timed anew in several rounds.

Only this stage measures every night, so that a device whose system, firmware or cooling has changed is detected although its
fingerprint is unchanged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tailor_ir
from profiling_agents.client import AgentClient
from profiling_agents.messages import Measurement
from tailor_ir import OperatorFeature, SuperNet
from tasks.base.artifacts import digest_of, read_lines
from tasks.base.pages.text import milliseconds
from tasks.base.progress import Progress
from tasks.base.schemas.exports import Exports
from tasks.base.schemas.stored import Config, StageResult
from tasks.measuring.jobs import Calm, TimedLine, pieces
from tasks.measuring.lut import Lut
from tasks.measuring.profile import Settings as ProfileSettings
from tasks.measuring.profile import operator_models
from tasks.measuring.settings import TimingSettings
from tasks.measuring.subnets import LeasedDevice, Subject, SubNetMeter
from tasks.operations.nightly.records import NightTimes, OperatorRounds, Settings, SubNetRounds
from tasks.prediction.layers import title

TIMES_FILE = "times.json"
ROUNDS_FILE = "rounds.jsonl"
ATTEMPTS = 2
"""Attempts for each round while a device is not calm."""


@dataclass(frozen=True, slots=True)
class NightSubNet:
    """A SubNet to be timed, its title, and its accuracy on the test split."""

    config: Config
    title: str
    accuracy: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NightRequest:
    """A device's operators and SubNets to be timed on one night. profile: how operators are timed. timing: how SubNets are.

    supernet: the trained one. lut: table of the device's operators, which identifies the slowest ones. exports: the winners.
    """

    settings: Settings
    profile: ProfileSettings
    timing: TimingSettings
    supernet: Path
    lut: Path
    exports: Exports


def time_device(device: LeasedDevice, request: NightRequest, out: Path, progress: Progress) -> StageResult:
    """Write `times.json`. AgentError when the device is gone; call again."""
    net, settings, timing = tailor_ir.load(request.supernet, batch=device.batch), request.settings, request.timing
    largest = net.space.digest(net.max_config)
    features = slowest(net, Lut.open(request.lut), settings.operators)
    operators = time_operators(features, settings, request.profile, device.client, progress)
    meter = SubNetMeter(net, device.client, timing.measure, timing.limits, settings.rounds, device.implementations)
    subnets = time_subnets(_subnets(net, request.exports), meter, out / ROUNDS_FILE, progress)
    how = [one.model_dump(mode="json") for one in (request.profile.measure, timing.measure)]
    return NightTimes(
        measured_with=digest_of(*how, device.batch), largest=largest, operators=operators, subnets=subnets
    ).write(out / TIMES_FILE)


def slowest(net: SuperNet, lut: Lut, count: int) -> list[OperatorFeature]:
    """At most `count` different operators of the largest SubNet, in order of decreasing latency in a table."""
    features = {feature.digest: feature for feature in net.operators(net.max_config)}

    def order(digest: str) -> tuple[float, str]:
        entry = lut.get(digest)
        return -((entry.latency_ms if entry else None) or 0.0), digest

    return [features[digest] for digest in sorted(features, key=order)[:count]]


def _subnets(net: SuperNet, exports: Exports) -> dict[str, NightSubNet]:
    """The largest SubNet and the winners, by digest."""
    configs = {card.digest: dict(card.config) for card in exports.subnets}
    largest = net.space.digest(net.max_config)
    found = {largest: NightSubNet(dict(net.max_config), "largest SubNet", None)}
    for row in sorted(exports.winners, key=lambda row: row.budget_ms):
        if row.digest not in found or found[row.digest].accuracy is None:
            name = "largest SubNet" if row.digest == largest else f"winner for {milliseconds(row.budget_ms)}"
            found[row.digest] = NightSubNet(configs[row.digest], name, row.accuracy.get("test"))
    return found


def time_operators(
    features: Sequence[OperatorFeature],
    settings: Settings,
    profile: ProfileSettings,
    client: AgentClient,
    progress: Progress,
) -> tuple[OperatorRounds, ...]:
    """Rounds of each operator, timed alone; rounds in which the device is not calm do not count, and are repeated."""
    device, failures, jobs = client.capabilities(), list[Measurement](), []
    for some in pieces(features, profile.batch_operators):
        made, failed = operator_models(some, device.formats, profile.limits, device.precision)
        jobs += made
        failures += failed
    reasons = {failure.key: failure.reason or "" for failure in failures}
    rounds: dict[str, list[float]] = {feature.digest: [] for feature in features}
    with progress.bar("operators tonight", total=settings.rounds) as bar:
        for attempt in range(ATTEMPTS * settings.rounds):
            todo = [job for job in jobs if job.key not in reasons and len(rounds[job.key]) < settings.rounds]
            for found in client.measure(todo, profile.measure) if todo else ():
                if found.p50_ms is None:
                    reasons[found.key] = found.reason or ""
                elif not found.noisy:
                    rounds[found.key].append(found.p50_ms)
            if attempt < settings.rounds:
                bar.advance()
    return tuple(
        OperatorRounds(
            digest=feature.digest,
            title=f"{title(feature)}, {'×'.join(map(str, feature.output_shapes[0][1:]))}",
            rounds_ms=() if feature.digest in reasons else tuple(rounds[feature.digest]),
            reason=reasons.get(feature.digest),
        )
        for feature in features
    )


def time_subnets(
    chosen: Mapping[str, NightSubNet], meter: SubNetMeter, file: Path, progress: Progress
) -> tuple[SubNetRounds, ...]:
    """Latencies on a calm device (`tasks.measuring.jobs`), with the largest SubNet as reference."""
    file.unlink(missing_ok=True)  # left by an interrupted attempt, maybe in another night
    subjects = [Subject(digest, meter.net, one.config) for digest, one in chosen.items()]
    meter.measure_all(subjects, file, progress, "SubNets tonight")
    lines: dict[str, list[TimedLine]] = {digest: [] for digest in chosen}
    for line in map(TimedLine.model_validate, read_lines(file)):
        lines[line.key].append(line)
    calm = Calm.fit(line for found in lines.values() for line in found)
    return tuple(_timed(digest, one, lines[digest], calm) for digest, one in chosen.items())


def _timed(digest: str, chosen: NightSubNet, lines: Sequence[TimedLine], calm: Calm) -> SubNetRounds:
    known = [line for line in lines if line.p50_ms is not None and not line.noisy]
    slowdowns = calm.slowdowns(known).tolist() if known else []
    times = [line.p50_ms / slow for line, slow in zip(known, slowdowns, strict=True) if line.p50_ms is not None]
    failed = [line.reason for line in lines if line.p50_ms is None]
    return SubNetRounds(
        digest=digest,
        title=chosen.title,
        rounds_ms=() if failed else tuple(times),
        accuracy=chosen.accuracy,
        reason=failed[0] if failed else None,
    )
