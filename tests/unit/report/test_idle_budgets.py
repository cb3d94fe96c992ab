"""Budgets that the whole network keeps are told in one remark."""

import pytest

from tasks.report.headline import idle


@pytest.mark.parametrize(
    ("budgets_ms", "told"),
    [
        ([0.5, 0.9], None),
        ([0.5, 1.04], None),
        ([0.5, 2.0], "a budget of 2 ms is above the base model's 1 ms: more time buys nothing"),
        ([0.5, 3.0, 2.0], "budgets of 2 ms, 3 ms are above the base model's 1 ms: more time buys nothing"),
        ([0.5, 1.0, 1.04], "budgets of 1 ms, 1.04 ms are above the base model's 1 ms: more time buys nothing"),
    ],
)
def test_budgets_above_the_whole_network(budgets_ms: list[float], told: str | None) -> None:
    winners = [{"budget_ms": budget_ms} for budget_ms in budgets_ms]
    assert idle({"base": {"name": "base model", "measured_ms": 1.0}, "winners": winners}) == told
