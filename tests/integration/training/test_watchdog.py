"""Ranks that freeze are named, ended and started again; those that wait for them, or are slow, are left alone."""

import pytest

from tasks.training.finetune.ranks import GAP_S, Phase, Sign, Silences


def seconds(signs: list[list[Sign]], times_s: list[float], *, is_alone: bool = True) -> list[float]:
    """How long each rank is silent in the end, seen with these signs at these times."""
    silences = Silences(signs[0], times_s[0], is_alone=is_alone)
    for seen, now_s in zip(signs[1:], times_s[1:], strict=True):
        found = silences.look(seen, now_s)
    return found


def signs_of(places: list[tuple[int, Phase, int]], stopped: tuple[int, ...] = (), count: int = 100) -> list[list[Sign]]:
    """The same places at each of `count` looks; the ticks of processes that are not stopped go on."""
    return [
        [
            Sign(pid=10 + rank, ticks=0 if rank in stopped else look, step=step, phase=phase, part=part)
            for rank, (step, phase, part) in enumerate(places)
        ]
        for look in range(count)
    ]


TIMES_S = [0.5 * look for look in range(100)]


NEVER, ALL = 0.0, 49.5


@pytest.mark.parametrize(
    ("places", "stopped", "is_alone", "expected"),
    [
        ([(3, Phase.TRAINING, 1), (3, Phase.TRAINING, 1)], (1,), True, [NEVER, ALL]),  # 0 waits for 1
        ([(3, Phase.TRAINING, 2), (3, Phase.READING, 0)], (), True, [NEVER, ALL]),  # a hung disk
        ([(3, Phase.WRITING, 0), (4, Phase.TRAINING, 1)], (), True, [ALL, NEVER]),
        ([(3, Phase.WRITING, 0), (4, Phase.TRAINING, 1)], (), False, [ALL, NEVER]),
        ([(3, Phase.TRAINING, 1)], (), True, [ALL]),
        ([(3, Phase.TRAINING, 1)], (), False, [NEVER]),  # waits for another machine
        ([(0, Phase.STARTING, 0), (0, Phase.STARTING, 0)], (), True, [NEVER, NEVER]),  # much data, a large network
        ([(0, Phase.STARTING, 0), (0, Phase.STARTING, 0)], (0,), True, [ALL, NEVER]),
        ([(9, Phase.ENDING, 0), (8, Phase.WRITING, 0)], (), True, [NEVER, ALL]),
    ],
)
def test_who_is_silent(
    places: list[tuple[int, Phase, int]], stopped: tuple[int, ...], is_alone: bool, expected: list[float]
) -> None:
    assert seconds(signs_of(places, stopped), TIMES_S, is_alone=is_alone) == pytest.approx(expected, abs=1.0)


def test_a_rank_that_goes_on_is_not_silent() -> None:
    places = [
        [Sign(1, look, 3, Phase.TRAINING, look // 10), Sign(2, look, 3, Phase.TRAINING, 99)] for look in range(96)
    ]
    assert seconds(places, TIMES_S[:96]) == pytest.approx([2.5, NEVER])


def test_while_the_launcher_did_not_run_no_rank_was_silent() -> None:
    """A suspended machine, or a launcher that was stopped itself: everything counts from its return."""
    signs = signs_of([(3, Phase.READING, 0), (3, Phase.READING, 0)], (0, 1))
    times_s = [time_s + (GAP_S + 3600 if look >= 90 else 0) for look, time_s in enumerate(TIMES_S)]
    assert seconds(signs, times_s) == pytest.approx([TIMES_S[99] - TIMES_S[90]] * 2)


def test_a_rank_that_is_started_again_counts_anew() -> None:
    old, new = (signs_of([(3, Phase.READING, 0)], (0,)) for _ in range(2))
    signs = old[:90] + [[sign._replace(pid=77) for sign in look] for look in new[90:]]
    assert seconds(signs, TIMES_S) == pytest.approx([TIMES_S[99] - TIMES_S[90]])
