"""A night against the one before: what is found, and what an unchanged device raises."""

import numpy as np
import pytest

from tasks.operations.nightly.comparison import compare
from tasks.operations.nightly.records import Finding, Night, Settings
from tests.support.nights.made_nights import LEVELS, OPERATORS, device, night, nights

SETTINGS = Settings()


def found(before: Night, now: Night, settings: Settings = SETTINGS) -> tuple[Finding, ...]:
    return compare(settings, [before], before, now).findings


def found_after(earlier: list[Night], now: Night) -> tuple[Finding, ...]:
    return compare(SETTINGS, earlier, earlier[-1], now).findings


@pytest.mark.long
def test_an_unchanged_device_raises_no_alarm_in_a_thousand_nights() -> None:
    """At 1 % of nights without any tolerance at all: that is what the tests promise."""
    strict = Settings(slower=0.0, smaller_front=0.0, error_points=0.0, false_alarms=0.01)
    every = nights(1000, seed=1)
    alarms = sum(bool(found(before, now, strict)) for before, now in zip(every[::2], every[1::2], strict=True))
    assert alarms <= 13  # of 500, of which 5 are promised at most: more than 13 are less likely than 0.1 %
    tolerant = sum(bool(found(before, now)) for before, now in zip(every[::2], every[1::2], strict=True))
    assert tolerant == 0


def test_operators_that_got_slower_are_named_and_no_others() -> None:
    slow = {f"o{place}": 1.2 for place in (3, 17, 30)}
    before, now = nights(2, seed=2, slower={1: slow})
    findings = found(before, now)
    assert {(one.kind, one.name) for one in findings} == {("operator", name) for name in slow}
    for one in findings:
        assert one.now is not None
        assert one.before is not None
        assert one.now / one.before == pytest.approx(1.2, rel=0.05)
    told = compare(SETTINGS, [before], before, now).devices["ncnn"]
    assert (told.timed, told.slower, told.faster) == (OPERATORS + len(LEVELS), 3, 0)


def test_what_got_faster_is_no_finding() -> None:
    before, now = nights(2, seed=3, slower={1: {"*": 0.7}})
    assert found(before, now) == ()
    told = compare(SETTINGS, [before], before, now).devices["ncnn"]
    assert told.faster == told.timed
    assert told.at_equal_accuracy is not None
    assert told.at_equal_accuracy[0] == pytest.approx(0.7, rel=0.02)
    assert told.at_equal_accuracy[1] < 0.7 < told.at_equal_accuracy[2]


def test_a_device_that_is_slower_as_a_whole_is_found_by_subnets_and_front() -> None:
    before, now = nights(2, seed=4, slower={1: {"*": 1.3}})
    kinds = {one.kind for one in found(before, now)}
    assert kinds == {"operator", "SubNet", "front"}


def test_accuracy_that_is_lost_shrinks_the_front_but_not_within_the_error_of_the_images() -> None:
    rng = np.random.default_rng(5)
    before = night(0, {"ncnn": device(rng, {})})
    lost = night(1, {"ncnn": device(rng, {}, lost=0.2)}, supernet="other")
    (finding,) = found(before, lost)
    assert (finding.kind, finding.unit) == ("front", "area")
    chance = night(1, {"ncnn": device(rng, {}, lost=0.05)}, supernet="other", test_images=100)
    assert found(before, chance) == ()
    exact = night(1, {"ncnn": device(rng, {}, lost=0.06)})  # the same weights on the same images: no chance is left
    assert [one.kind for one in found(before, exact)] == ["front"]


def test_predictors_that_err_more_are_found() -> None:
    rng = np.random.default_rng(6)
    before = night(0, {"ncnn": device(rng, {})}, accuracy_errors={str(place): 0.5 for place in range(24)})
    errors = {str(place): 5.0 + place / 10 for place in range(24)}
    now = night(1, {"ncnn": device(rng, {}, errors=0.2)}, accuracy_errors=errors)
    assert [(one.kind, one.device) for one in found(before, now)] == [
        ("latency predictor", "ncnn"),
        ("accuracy predictor", ""),
    ]


def test_an_operator_that_fails_now_is_found() -> None:
    before, now = nights(2, seed=7)
    times = now.devices["ncnn"].times
    broken = times.operators[0].model_copy(update={"rounds_ms": (), "reason": "unsupported"})
    times = times.model_copy(update={"operators": (broken, *times.operators[1:])})
    now = now.model_copy(update={"devices": {"ncnn": now.devices["ncnn"].model_copy(update={"times": times})}})
    (finding,) = found(before, now)
    assert (finding.name, finding.now) == ("o0", None)
    assert finding.what.endswith("fails: unsupported")


def test_a_device_whose_nights_differ_by_themselves_is_given_more_room() -> None:
    """Nights of a machine that others use, too, differ by 8 %; a device that is twice as slow is found all the same."""
    every = nights(12, seed=8, between=0.08, slower={11: {"*": 2.0}})
    alarms = [found_after(every[: number + 1], every[number + 1]) for number in range(3, 10)]
    assert alarms == [()] * len(alarms)
    assert found_after(every[:11], every[11])
    calm = compare(SETTINGS, nights(8, seed=9), *nights(2, seed=9)).devices["ncnn"]
    assert calm.tolerated == SETTINGS.slower


def test_nights_that_cannot_be_compared_say_so_in_one_line() -> None:
    rng = np.random.default_rng(10)
    now = night(1, {"ncnn": device(rng, {}), "board": device(rng, {})})
    nothing = compare(SETTINGS, [], None, now)
    assert nothing.notes == ("no earlier night of resnet18-digits in this output folder: nothing to compare with",)
    assert (nothing.tests, nothing.findings) == (0, ())
    before = night(0, {"ncnn": device(rng, {})})
    told = compare(SETTINGS, [before], before, now)
    assert told.notes == ("board: was not in the night before: not compared",)
    other = before.devices["ncnn"].times.model_copy(update={"measured_with": "otherwise"})
    before = before.model_copy(update={"devices": {"ncnn": before.devices["ncnn"].model_copy(update={"times": other})}})
    told = compare(SETTINGS, [before], before, now)
    assert told.devices["ncnn"].notes == ("latencies were measured otherwise the night before: not compared",)
    assert told.devices["ncnn"].timed == 0
