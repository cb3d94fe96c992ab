"""Nights as records: latencies with noise of rounds and of nights, and whatever a test changes in them."""

from collections.abc import Mapping

import numpy as np

from tasks.operations.nightly.records import DeviceNight, Night, NightTimes, OperatorRounds, StageNight, SubNetRounds

OPERATORS = 40
LEVELS = (0.80, 0.85, 0.88, 0.90)
"""Accuracies of the winners, from the fastest to the largest SubNet."""
ROUNDS = 5
NOISE = 0.01
STAGES = (StageNight(stage="finetune", key="k", code="c", needs=(), devices=(), worked=False, seconds=9.0),)


def factor_of(slower: Mapping[str, float], digest: str) -> float:
    """By which a latency is multiplied; "*" is of all others."""
    return slower.get(digest, slower.get("*", 1.0))


def device(
    rng: np.random.Generator,
    slower: Mapping[str, float],
    *,
    lost: float = 0.0,
    errors: float = 0.03,
    noise: float = NOISE,
) -> DeviceNight:
    """One device. lost: accuracy that all winners lose. errors: of the latency predictor, the mean. noise: of a round."""

    def rounds(ms: float, digest: str) -> tuple[float, ...]:
        drawn = ms * factor_of(slower, digest) * np.exp(noise * rng.standard_normal(ROUNDS))
        return tuple(float(one) for one in drawn)

    operators = tuple(
        OperatorRounds(
            digest=f"o{place}", title=f"Conv 3×3, {place}", rounds_ms=rounds(0.01 * (place + 1), f"o{place}")
        )
        for place in range(OPERATORS)
    )
    subnets = tuple(
        SubNetRounds(
            digest=f"s{place}",
            title=f"winner {place}",
            rounds_ms=rounds(place + 1.0, f"s{place}"),
            accuracy=level - lost,
        )
        for place, level in enumerate(LEVELS)
    )
    held_out = {f"h{place}": float(error) for place, error in enumerate(errors * (0.5 + rng.random(12)))}
    return DeviceNight(
        fingerprint="f",
        facts={"version": "1.0"},
        times=NightTimes(measured_with="m", largest=subnets[-1].digest, operators=operators, subnets=subnets),
        latency_errors=held_out,
    )


def night(number: int, devices: Mapping[str, DeviceNight], **changes: object) -> Night:
    """The night of one day of a year."""
    began = np.datetime64("2026-01-01T02:00:00") + np.timedelta64(number, "D")
    whole = {
        "began": f"{began}.000000+00:00",
        "network": "resnet18-digits",
        "run": "r",
        "supernet": "w",
        "inputs": {"data": "d", "network": "n"},
        "stages": STAGES,
        "devices": dict(devices),
        "test_images": 500,
        "accuracy_errors": {"a": 1.0, "b": 0.5, "c": 0.7},
        **changes,
    }
    return Night.model_validate(whole)


def nights(
    count: int, seed: int, slower: Mapping[int, Mapping[str, float]] | None = None, between: float = 0.0
) -> list[Night]:
    """Nights of one device, "ncnn". slower: by night, factors by digest. between: deviation that a night's latencies share."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        shared = float(np.exp(between * rng.standard_normal()))
        own = (slower or {}).get(number, {})
        factors = {name: shared * one for name, one in {"*": 1.0, **own}.items()}
        found.append(night(number, {"ncnn": device(rng, factors)}))
    return found
