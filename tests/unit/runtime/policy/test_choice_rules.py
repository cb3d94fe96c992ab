"""Rules of the user: what they say, what they refuse, and that they do not flap."""

from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.policy import (
    BatteryMu,
    ByRules,
    ChoiceLimits,
    ChoiceState,
    CriterionWeights,
    DecisionInputs,
    DecisionLog,
    DeviceContext,
    LoadFactors,
    Switching,
    VariantLookUp,
    VariantTable,
    parse_rules,
    replay,
)
from adaptive_runtime.policy.rules import RuleCondition
from adaptive_runtime.policy.scoring import ACCURACY_FIRST, ENERGY_FIRST, LATENCY_FIRST
from tests.support import examples
from tests.support.runtime.variants import THREE, decided

LIMITS = ChoiceLimits(budget_ms=20.0)
DWELL_S = 2.0
SAVING = "battery < 20% -> energy first"


def by(text: str, table: VariantTable = THREE) -> ByRules:
    """As a model that adapts has them."""
    return ByRules(parse_rules(text), VariantLookUp(table), partial(Switching, dwell_s=DWELL_S))


def at(now_s: float, load: float | None = None, **device: float | bool | None) -> DecisionInputs:
    context = DeviceContext.model_validate(device)
    return DecisionInputs(now_s=now_s, limits=LIMITS, factors=LoadFactors(), load=load, device=context)


def test_the_text_of_rules_says_what_they_are() -> None:
    text = """policy: battery < 20% and not charging or temperature >= 70 °C → mu = 0.3, at most 30 mJ, at most 200 MiB
        memory <= 10% -> latency first; Memory < 200 MiB -> energy first
        load > 80% -> accuracy first, at most 5 mJ
        mu by battery 10%: 0.2, 80%: 0.9"""
    first, share, memory, load, last = parse_rules(text).rules
    hot = RuleCondition("temperature", ">=", 70.0)
    low = RuleCondition("battery", "<", 0.2), RuleCondition("charging", "<=", 0.0)
    assert first.any_of == (low, (hot,))
    assert (first.counts, first.energy_mj, first.memory_mib) == (CriterionWeights.of_mu(0.3), 30.0, 200.0)
    assert (share.any_of, share.counts) == (((RuleCondition("memory share", "<=", 0.1),),), LATENCY_FIRST)
    assert (memory.any_of, memory.counts) == (((RuleCondition("memory", "<", 200.0),),), ENERGY_FIRST)
    assert (load.counts, load.energy_mj) == (ACCURACY_FIRST, 5.0)
    assert (last.any_of, last.counts) == ((), BatteryMu(((0.1, 0.2), (0.8, 0.9))))
    assert parse_rules("mu by battery").rules[0].counts == BatteryMu()
    text = "weigh accuracy:energy = 3, latency:accuracy = 1/5, energy:latency = 2, at most 3 mJ"
    (weighed,) = parse_rules(text).rules
    assert isinstance(weighed.counts, CriterionWeights)
    assert weighed.counts[:3] == pytest.approx((0.648, 0.230, 0.122), abs=0.001)
    assert weighed.energy_mj == 3.0


def test_a_rule_can_keep_weights_from_adapting() -> None:
    policy = by("battery < 20% -> energy first, weights off; accuracy first")
    state, told = ChoiceState(), []
    for now_s, battery in enumerate((0.5, 0.1, 0.5)):
        decision = policy(state, at(float(now_s), battery=battery))
        state = decision.after
        told.append((decision.adapts_weights, "weights off" in decision.reason))
    assert told == [(True, False), (False, True), (True, False)]
    assert not parse_rules("weights off").rules[0].adapts_weights
    with pytest.raises(AdaptiveError, match="weights off is there twice"):
        parse_rules("weights off, weights off")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (" ;\n", "policy: is empty; allowed: rules such as 'battery < 20% -> energy first; accuracy first'"),
        (
            "accuracy first; battery < 3% -> energy first",
            "policy, rule 2: is never reached: rule 1, 'accuracy first', always holds; give it a condition, or put it last",
        ),
        (
            "batery < 3% -> energy first",
            "policy, rule 1, column 1: 'batery'; allowed: battery, memory, load, temperature, charging or not charging; "
            "correct the rule",
        ),
        ("battery < 20 -> energy first", "policy, rule 1, column 14: '->'; allowed: %; correct the rule"),
        (
            "battery < 120% -> energy first",
            "policy, rule 1, column 11: '120'; allowed: a number from 0 to 100 %; correct the rule",
        ),
        (
            "battery 20% -> energy first",
            "policy, rule 1, column 9: '20'; allowed: < or <= or > or >=; correct the rule",
        ),
        ("battery < 20% energy first", "policy, rule 1, column 15: 'energy'; allowed: ->; correct the rule"),
        ("battery < 20% -> energy", "policy, rule 1, column 24: the rule ends; allowed: first; correct the rule"),
        (
            "battery < 20% -> fast",
            "policy, rule 1, column 18: 'fast'; allowed: accuracy first, energy first, latency first, mu = 0.3, "
            "mu by battery, weigh, at most, weights off; correct the rule",
        ),
        ("mu = 3", "policy, rule 1, column 6: '3'; allowed: a number from 0 to 1; correct the rule"),
        ("at most 3 kg", "policy, rule 1, column 11: 'kg'; allowed: mj or mib; correct the rule"),
        ("energy first and", "policy, rule 1, column 14: 'and'; allowed: the end of the rule; correct the rule"),
        (
            "energy first, mu = 1",
            "policy, rule 1, column 21: what counts first is there twice; allowed: once; correct the rule",
        ),
        (
            "weigh energy:accuracy = 3, accuracy:energy = 3",
            "policy, rule 1, column 46: 'accuracy:energy'; allowed: each pair of two criteria, once; correct the rule",
        ),
        (
            "weigh accuracy:energy = 3, energy:latency = 2",
            "preferences: 'weigh accuracy:energy = 3, energy:latency = 2' does not compare accuracy and latency; add "
            "accuracy:latency = 1 to 9, or 1/9 to 1",
        ),
        (
            "weigh accuracy:energy = 3, energy:latency = 3, accuracy:latency = 1/9",
            "preferences: accuracy:latency = 1/9 contradicts the other pairs (consistency ratio 2.21); allowed: a ratio up "
            "to 0.1; accuracy:latency = 9 would fit best (0.00)",
        ),
    ],
)
def test_a_text_that_is_no_rules_is_one_line(text: str, line: str) -> None:
    with pytest.raises(AdaptiveError) as caught:
        parse_rules(text)
    assert str(caught.value) == line


def test_a_rule_that_needs_what_the_table_does_not_know_is_refused() -> None:
    bare = THREE.model_copy(update={"energy_mj": None, "memory_mib": None})
    for text, name in (
        (SAVING, "energy"),
        ("mu by battery", "energy"),
        ("at most 3 mJ", "energy"),
        ("at most 3 MiB", "memory"),
    ):
        with pytest.raises(AdaptiveError, match=f"^policy, rule '{text}': needs the {name} of variants, which"):
            by(text, bare)
    assert by("latency first; ", bare).rules.text == "latency first"


def test_the_first_rule_that_holds_decides_and_is_told() -> None:
    policy = by(f"{SAVING}; charging -> accuracy first; mu by battery")
    charges = [(0.9, True), (0.9, False), (0.9, False), (0.3, False), (0.3, False), (0.1, False), (0.1, False)]
    inputs = [at(3.0 * step, battery=battery, charging=charging) for step, (battery, charging) in enumerate(charges)]
    made = decided(policy, inputs)
    assert [one.name for one in made] == ["large", "large", "large", "large", "middle", "middle", "small"]
    assert [one.rule for one in made[::3]] == [
        "rule 'charging -> accuracy first' holds",
        "rule 'mu by battery'",
        "rule 'battery < 20% -> energy first' holds",
    ]
    assert made[-1].reason.startswith("rule 'battery < 20% -> energy first' holds; small (70.00%) keeps the limits")
    assert made[3].reason.startswith("rule 'mu by battery', mu 0.44; ")


def test_where_no_rule_holds_the_most_accurate_variant_within_the_limits_is_best() -> None:
    policy = by(SAVING)
    assert decided(policy, [at(0.0), at(1.0, battery=0.5)])[-1].name == "large"
    assert decided(policy, [at(0.0)])[0].rule == "no rule holds: accuracy first"


def test_limits_of_a_rule_and_the_memory_of_now_hold_at_once() -> None:
    policy = by("battery < 20% -> at most 3 mJ; temperature > 70 C -> at most 20 MiB")
    rows = [at(0.0, battery=0.9), at(0.1, battery=0.1), at(0.2, battery=0.9, temperature_c=80)]
    made = decided(policy, rows)
    assert [(one.name, one.step) for one in made] == [("large", "start"), ("middle", "down"), ("small", "down")]
    little = decided(policy, [at(0.0, memory_available_mib=50.0)])
    assert [one.name for one in little] == ["middle"], "100 MiB are not free"
    rising = decided(policy, [at(3.0 * step, memory_available_mib=30.0 + 40 * (step > 1)) for step in range(5)])
    assert [one.name for one in rising] == ["small", "small", "middle", "middle", "large"]
    falling = [at(0.0, memory_available_mib=200.0), at(1.0, memory_available_mib=0.0)]
    assert [one.name for one in decided(policy, falling)] == ["large", "large"], "what runs has its memory"


def test_latency_first_is_the_fastest_under_load() -> None:
    table = THREE.model_copy(update={"load_class": (0, 1, 1)})
    busy = at(0.0)._replace(factors=LoadFactors(mean=(3.0, 1.0), deviation=(0.0, 0.0)))
    assert decided(by("latency first", table), [busy])[0].name == "middle"


def test_a_value_at_its_limit_does_not_flap() -> None:
    policy = by(SAVING)
    charges = [0.21, 0.199, 0.2, 0.199, 0.205, 0.215, 0.199, 0.219]
    told = [one.rule for one in decided(policy, [at(step, battery=each) for step, each in enumerate(charges)])]
    assert [rule is not None and SAVING in rule for rule in told] == [False] + [True] * 7
    for at_limit in ({"battery": 0.2}, {"battery": 0.22}):
        assert decided(policy, [at(0.0, battery=0.1), at(1.0, **at_limit)])[1].rule == (
            f"rule '{SAVING}' holds" if at_limit["battery"] < 0.22 else "no rule holds: accuracy first"
        )
    gone = decided(policy, [at(0.0, battery=0.1), at(1.0)])
    assert gone[1].rule == gone[0].rule, "a sensor that falls silent changes nothing"


@settings(deadline=None, max_examples=examples(60))
@given(
    st.sampled_from(["battery", "load", "memory", "memory share", "temperature"]),
    st.sampled_from(["<", "<=", ">", ">="]),
    st.lists(st.integers(-100, 100), max_size=30),
)
def test_a_condition_changes_only_with_values_that_go_over_its_limit_or_back_over_its_band(
    quantity: str, sign: str, moves: list[int]
) -> None:
    limit = {"memory": 200.0, "temperature": 60.0}.get(quantity, 0.5)
    condition = RuleCondition(quantity, sign, limit)  # type: ignore[arg-type]
    holds = False
    for move in moves:
        value = limit + move / 25 * condition.band
        device = {
            "battery": {"battery": value},
            "load": {},
            "memory": {"memory_available_mib": value},
            "memory share": {"memory_available_mib": value, "memory_total_mib": 1.0},
            "temperature": {"temperature_c": value},
        }[quantity]
        now = condition.holds(at(0.0, value, **device), holds)
        beyond = move > 0 if sign.startswith(">") else move < 0
        if beyond or (move == 0 and "=" in sign):
            assert now
        elif abs(move) < 25 or not holds:
            assert now == holds
        elif abs(move) > 25:
            assert not now
        holds = now


def test_a_battery_that_jumps_over_its_limit_faster_than_the_wait_changes_nothing() -> None:
    charges = [0.3 if step % 2 else 0.1 for step in range(120)]
    made = decided(by(SAVING), [at(1.0 * step, battery=each) for step, each in enumerate(charges)])
    assert {one.name for one in made} == {"small"}


def test_later_runs_of_a_request_keep_the_rule_of_its_first() -> None:
    policy = by("battery < 20% -> energy first; mu by battery")
    first = policy(ChoiceState(), at(0.0, battery=0.15))
    later = at(0.1, battery=0.9)._replace(for_run=True)
    second = policy(first.after, later)
    assert second.after == first.after
    assert (first.rule, first.name) == (second.rule, second.name)


def test_decisions_by_rules_replay_from_their_log(tmp_path: Path) -> None:
    file = tmp_path / "decisions.jsonl"
    policy = by(f"{SAVING}, at most 200 MiB; mu by battery")
    state = ChoiceState()
    with DecisionLog(file, THREE, state, policy.rules.text) as log:
        for step in range(40):
            charge = abs(20 - step) / 20
            inputs = at(2.0 * step, battery=charge, charging=step % 7 == 0, memory_available_mib=500.0 - 10 * step)
            decision = policy(state, inputs)
            state = decision.after
            log.append(inputs, decision)
    assert replay(file, THREE, by(policy.rules.text)) == 40
    with pytest.raises(
        AdaptiveError, match=r"line 2 decided .*; its policy was 'battery < 20% .*; mu by battery'; replay"
    ):
        replay(file, THREE, by("accuracy first"))
