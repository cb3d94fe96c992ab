import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.exits import NO_EXIT, ExitChoice, ExitTable, best_within

share = st.integers(1, 8).map(lambda k: k / 8)
choices = st.lists(st.builds(ExitChoice, st.integers(0, 2), st.integers(NO_EXIT, 1), share, share), max_size=12)


@given(choices, share)
def test_a_table_decides_alike_before_and_after_it_was_a_file(drawn: list[ExitChoice], budget_ms: float) -> None:
    table = ExitTable(subnets=("a", "b", "c"), exits=("stage.1", "last"), choices=tuple(drawn))
    read = ExitTable.from_json(table.to_json())
    assert read == table
    assert all(isinstance(choice, ExitChoice) for choice in read.choices)
    assert read.best_within(budget_ms) == best_within(drawn, budget_ms)


def test_a_table_that_names_no_such_subnet_or_exit_is_refused_in_one_line() -> None:
    text = '{"subnets": ["a"], "exits": ["last"], "choices": [[1, 0, 0.5, 1.0]]}'
    with pytest.raises(AdaptiveError, match=r"^exits/exit_table\.json: .*subnet 1 of 1.*; make the table again$"):
        ExitTable.from_json(text, "exits/exit_table.json")
    with pytest.raises(AdaptiveError, match="exit 3 of 1"):
        ExitTable.from_json(text.replace("[1, 0,", "[0, 3,"))
    with pytest.raises(AdaptiveError, match="version"):
        ExitTable.from_json(text.replace("{", '{"version": 2, ', 1))
