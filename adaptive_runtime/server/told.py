"""The state of a service as JSON: the answer to `/state`, from which the page is drawn."""

import time
from dataclasses import asdict
from typing import Any

from adaptive_runtime.base.weight_state import WeightsState
from adaptive_runtime.model.deployed import ModelState
from adaptive_runtime.pool import Variant
from adaptive_runtime.server.load import LoadTold
from adaptive_runtime.server.recent import RecentService, name_of


def state_told(state: ModelState, recent: RecentService, load: LoadTold, queue: dict[str, int]) -> dict[str, Any]:
    """The whole current state. Times are ages in seconds, so the clock of the reader does not matter."""
    now_s = time.monotonic()
    answers = [{"age_s": round(now_s - row.at_s, 3), **_without_time(row._asdict())} for row in recent.answers]
    decisions = [
        {"age_s": round(now_s - one.at_s, 1), **_without_time(one.model_dump())} for one in reversed(recent.decisions)
    ]
    return {
        "uptime_s": round(now_s - recent.started_s, 1),
        "model": _model(state),
        "load": load.model_dump(),
        "queue": queue,
        "outcomes": dict(recent.outcomes),
        "latency_ms": recent.percentiles_ms(),
        "answers": answers,
        "decisions": decisions,
    }


def _model(state: ModelState) -> dict[str, Any]:
    return {
        "serving": _variant(state.serving),
        "format": state.format,
        "standby": None if state.standby is None else _variant(state.standby),
        "warm": [name_of(one) for one in state.warm],
        "taken_out": dict(state.taken_out),
        "requests": state.requests,
        "switches": state.switches,
        "stood_in": state.stood_in,
        "latency_ms": state.latency_ms,
        "used_mib": state.used_mib,
        "budget_mib": state.budget_mib,
        "budget_ms": state.budget_ms,
        "weights": None if state.weights is None else _weights(state.weights),
        "rule": None if state.adapting is None else state.adapting.rule,
        "mu": None if state.adapting is None else state.adapting.mu,
    }


def _weights(state: WeightsState) -> dict[str, Any]:
    subnets = {digest: asdict(one) for digest, one in state.subnets.items()}
    return {"subnets": subnets, "left_out": state.left_out}


def _variant(variant: Variant) -> dict[str, Any]:
    return {"name": name_of(variant), **variant._asdict()}


def _without_time(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "at_s"}
