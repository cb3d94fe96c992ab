"""The choice of an engine from times: what is faster is kept, noise is not, and what was timed is not timed again."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling_agents.messages import DEFAULT_ENGINE, Engine, EngineOption
from tasks.measuring.runtime_options.settings import Settings
from tasks.measuring.runtime_options.stage import Descent
from tasks.measuring.runtime_options.timing import LEAST_ROUNDS, compare
from tests.support import examples
from tests.support.engine.made_device import Cost, MadeDevice, timer

SHARE = 0.02
NOISE = 0.03
RUNS = 200
OPTIONS = tuple(
    EngineOption(name=name, choices=("on", "off"), default="on", does="Something.") for name in ("a", "b", "c")
)


def made(ratio: float, noise: float, seed: int, *, subnets: int = 5, rounds: int = 6) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [math.log(ratio) + rng.normal(0, noise, rounds) for _ in range(subnets)]


def test_noise_is_no_gain() -> None:
    kept = sum(compare(made(1.0, NOISE, seed), 0).rejection(SHARE) is None for seed in range(RUNS))
    assert kept <= 0.02 * RUNS


def test_a_gain_beyond_the_noise_is_kept() -> None:
    kept = sum(compare(made(0.9, NOISE, seed), 0).rejection(SHARE) is None for seed in range(RUNS))
    assert kept >= 0.98 * RUNS


@pytest.mark.parametrize(
    ("log_ratios", "reason"),
    [
        (made(0.99, 0.0, 0), "saves 1.0% of the time; needed: 2%"),
        (made(1.3, 0.0, 0), "takes 30.0% more time; needed: 2% less"),
        (made(0.9, 0.0, 0, rounds=LEAST_ROUNDS - 1), "timed too few times to tell"),
        ([np.full(4, 0.05), *made(0.5, 0.0, 0)], "slows the largest SubNet by 5.1%"),
        ([np.array([-0.6, 0.5, -0.5, 0.4])], "its gain is within the noise"),
    ],
)
def test_a_choice_that_is_not_kept_has_its_reason(log_ratios: list[np.ndarray], reason: str) -> None:
    assert compare(log_ratios, 0).rejection(SHARE) == reason


def test_one_disturbed_pair_does_not_decide() -> None:
    log_ratios = made(0.9, 0.005, 1)
    log_ratios[2][3] = 2.0
    assert compare(log_ratios, 0).ratio == pytest.approx(0.9, rel=0.01)


@given(st.floats(-0.5, 0.5), st.integers(0, 50))
@settings(max_examples=examples(20))
def test_a_factor_on_all_times_is_a_factor_of_the_ratio(shift: float, seed: int) -> None:
    before, after = compare(made(1.0, NOISE, seed), 0), compare([one + shift for one in made(1.0, NOISE, seed)], 0)
    assert before.low is not None
    assert before.high is not None
    assert before.low <= before.ratio <= before.high
    for name in ("ratio", "low", "high", "largest"):
        assert getattr(after, name) == pytest.approx(getattr(before, name) * math.exp(shift))


def descent(cost: Cost, file: Path, noise: float = 0.01, **changes: object) -> tuple[Descent, MadeDevice]:
    device = MadeDevice(cost, noise)
    return Descent(Settings.model_validate(changes), OPTIONS, timer(device, file), lambda engine: None), device


def only_together(choices: Mapping[str, str]) -> float:
    """Option b gains only where a is off."""
    a, b = choices.get("a") == "off", choices.get("b") == "off"
    return (0.7 if a else 1.0) * (0.8 if a and b else 1.0)


def test_what_one_option_gains_may_depend_on_another(tmp_path: Path) -> None:
    found, _ = descent(only_together, tmp_path / "times.jsonl")
    assert found.tuned(DEFAULT_ENGINE) == Engine(choices={"a": "off", "b": "off"})
    kept = {(one.option, one.choice): one.gain.ratio for one in found.tried if one.reason is None}
    assert kept == {("a", "off"): pytest.approx(0.7, rel=0.03), ("b", "off"): pytest.approx(0.8, rel=0.03)}
    assert {one.option for one in found.tried if one.reason} == {"b", "c"}


def test_without_a_gain_the_defaults_stay(tmp_path: Path) -> None:
    found, _ = descent(lambda choices: 1.0, tmp_path / "times.jsonl", noise=NOISE)
    assert found.tuned(DEFAULT_ENGINE) == DEFAULT_ENGINE
    assert all(one.reason for one in found.tried)


def test_a_config_may_say_on_and_off_and_numbers() -> None:
    fixed = Settings.model_validate({"fixed": {"winograd": 63, "sgemm": False, "packing": True}}).fixed
    assert fixed == {"packing": "on", "sgemm": "off", "winograd": "63"}


def test_what_is_fixed_stays_though_it_is_slower(tmp_path: Path) -> None:
    costs = {"on": 1.0, "off": 0.5}
    found, _ = descent(lambda choices: costs[choices.get("b", "on")] * 1.1, tmp_path / "times.jsonl")
    assert found.tuned(Engine(choices={"b": "on"})) == Engine(choices={"b": "on"})


def test_a_choice_that_changes_outputs_is_left(tmp_path: Path) -> None:
    found, _ = descent(only_together, tmp_path / "times.jsonl")
    found.difference = lambda engine: "outputs differ" if "a" in engine.choices else None
    assert found.tuned(DEFAULT_ENGINE) == DEFAULT_ENGINE
    assert [one.reason for one in found.tried if one.option == "a"] == ["outputs differ"]


def test_a_clearly_slower_choice_is_timed_once(tmp_path: Path) -> None:
    found, _ = descent(lambda choices: 2.0 if choices else 1.0, tmp_path / "times.jsonl")
    found.tuned(DEFAULT_ENGINE)
    assert [one.gain.pairs for one in found.tried] == [len(found.timer.jobs)] * len(OPTIONS)


def test_when_the_time_is_over_no_choice_is_tried(tmp_path: Path) -> None:
    found, device = descent(only_together, tmp_path / "times.jsonl", limit_s=1.0)
    found.timer.spent_s = 2.0
    assert found.tuned(DEFAULT_ENGINE) == DEFAULT_ENGINE
    assert {one.reason for one in found.left_out} == {"1 s were over"}
    assert device.timed == 0


def test_what_is_chosen_for_each_operator_is_not_tried(tmp_path: Path) -> None:
    options = (OPTIONS[0].model_copy(update={"by_operator": True}), *OPTIONS[1:])
    device = MadeDevice(only_together, 0.01)
    found = Descent(Settings(), options, timer(device, tmp_path / "times.jsonl"), lambda engine: None, by_operator=True)
    assert found.tuned(DEFAULT_ENGINE) == DEFAULT_ENGINE
    assert {one.option for one in found.tried} == {"b", "c"}
    assert [(one.option, one.choice) for one in found.left_out] == [("a", "off")]


def test_a_second_call_times_nothing_again(tmp_path: Path) -> None:
    file = tmp_path / "times.jsonl"
    first, _ = descent(only_together, file)
    engine = first.tuned(DEFAULT_ENGINE)
    second, device = descent(only_together, file)
    assert second.tuned(DEFAULT_ENGINE) == engine
    assert device.timed == 0
    assert second.tried == first.tried
