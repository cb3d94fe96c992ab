from hypothesis import given
from hypothesis import strategies as st

from adaptive_runtime.exits import NO_EXIT, ExitChoice, best_within

coarse = st.integers(0, 8).map(lambda k: k / 8)
choices = st.lists(st.builds(ExitChoice, st.integers(0, 5), st.integers(NO_EXIT, 2), coarse, coarse), max_size=25)


@given(choices, coarse)
def test_no_measured_choice_within_the_budget_is_better(drawn: list[ExitChoice], budget_ms: float) -> None:
    best = best_within(drawn, budget_ms)
    fitting = [each for each in drawn if each.latency_ms <= budget_ms]
    assert (best is None) == (not fitting)
    if best is not None:
        assert best in fitting
        assert all(each.accuracy <= best.accuracy for each in fitting)
        if best.exit != NO_EXIT:
            without = [each for each in fitting if each.exit == NO_EXIT]
            assert all((each.accuracy, -each.latency_ms) < (best.accuracy, -best.latency_ms) for each in without)


def test_of_equal_choices_the_subnet_without_exits_is_taken() -> None:
    table = [ExitChoice(0, 1, 0.9, 2.0), ExitChoice(1, NO_EXIT, 0.9, 2.0), ExitChoice(2, 0, 0.8, 1.0)]
    assert best_within(table, 3.0) == table[1]
    assert best_within(table, 1.5) == table[2]
