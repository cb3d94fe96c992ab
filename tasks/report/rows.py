"""Parts of a report as JSON."""

from typing import Any, TypedDict

from tailor_ir import Choice


class ReportedVariable(TypedDict):
    """A variable of the SuperNet."""

    name: str
    kind: str
    scope: str
    choices: list[int | float | str]
    default: int | float | str


class ReportedSpace(TypedDict):
    """The space of the SuperNet. `codes`, `distinct`: as texts, beyond the integers that readers of JSON keep exact."""

    variables: list[ReportedVariable]
    modifications: int
    codes: str
    distinct: str
    unique_operators: int


class ReportedReference(TypedDict):
    """The reference network for the winners, with its test accuracy if known."""

    name: str
    accuracy: float | None


class SubNetSize(TypedDict):
    """The size of a SubNet; `resolution`: the width of its input."""

    macs: int
    parameters: int
    resolution: int


class ReportedModification(TypedDict):
    """The cost of one choice of one variable, compared with the largest SubNet."""

    variable: str
    choice: Choice
    delta_points: float
    delta_loss: float
    standard_error_points: float


class ReportedSensitivities(TypedDict):
    """Sensitivities measured on `samples` images; `accuracy`: of the largest SubNet; `validation`: `AccuracyValidation`."""

    samples: int
    accuracy: float
    rows: list[ReportedModification]
    validation: dict[str, Any]


class ReportedOperators(TypedDict):
    """The operators of one type in the look-up table: their numbers, the sum of their latencies, and their median spread."""

    operator: str
    count: int
    ok: int
    fused: int
    failed: int
    total_ms: float | None
    median_spread: float | None
