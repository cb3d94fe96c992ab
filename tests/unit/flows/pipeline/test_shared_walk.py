"""What a worker goes on with while another one is at a stage."""

from typing import cast

import pytest

from flows.config import RetargetConfig, RunConfig
from flows.config.compose import compose_config
from flows.config.validate import validate
from flows.pipeline.run import Run
from flows.pipeline.stages import PIPELINE, RETARGETING
from flows.pipeline.stages.spec import StageSpec
from flows.pipeline.stages.walk import _Labels, _ready, rows
from tests.support.flows.tiny import TINY


def ready(*without: str, table: tuple[StageSpec, ...] = PIPELINE) -> list[str]:
    """Stages that may be worked where some are worked already."""
    if table is PIPELINE:
        config: RunConfig | RetargetConfig = validate(RunConfig, compose_config("config", [*TINY, "baselines=all"]))
    else:
        config = validate(
            RetargetConfig,
            compose_config("retarget", ["supernet=net", "search.limits.memory_mib=100", "exits.subnets=0"]),
        )
    nobody = cast("Run", None)  # nothing is worked
    found = {spec.name: _Labels(spec, nobody, config, {}) for spec in rows(table, config, "report")}
    return [name for name, _ in _ready({name: one for name, one in found.items() if name not in without})]


@pytest.mark.parametrize(
    ("worked", "expected"),
    [
        ([], ["check"]),
        (["check"], ["base", "sibling"]),
        (["check", "base"], ["compile", "sibling"]),
        (["check", "base", "compile"], ["finetune", "enumerate", "batches", "sibling"]),
        (["check", "base", "compile", "enumerate", "batches"], ["finetune", "profile", "sibling"]),
        (["check", "base", "compile", "enumerate", "batches", "profile"], ["finetune", "latency", "sibling"]),
    ],
)
def test_a_worker_goes_on_with_stages_that_need_none_of_those_that_are_not_worked(
    worked: list[str], expected: list[str]
) -> None:
    assert ready(*worked) == expected


def test_what_stands_before_the_check_of_an_adaptation_comes_first() -> None:
    assert ready(table=RETARGETING) == ["given", "check"]
