"""What a command is given: sizes of batches that fit each other, faults that are all told, folders that are there."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.config import RunConfig
from flows.config.compose import compose_config
from flows.config.validate import validate
from flows.pipeline.stages import table_of
from flows.pipeline.stages.forecast import forecast
from tasks.base.errors import UserError
from tasks.training.finetune.settings import USUAL, TrainSettings, derived_batches

SOME = st.none() | st.integers(2, 300)


@given(SOME, SOME, st.none() | st.integers(1, 4), st.integers(1, 3))
def test_what_is_not_given_of_a_batch_follows(
    batch: int | None, micro: int | None, processes: int | None, nodes: int
) -> None:
    found = derived_batches({"batch_size": batch, "micro_batch": micro, "processes": processes, "nodes": nodes})
    for name, value in (("batch_size", batch), ("micro_batch", micro), ("processes", processes)):
        assert value in (None, found[name]), "what is given stays"
    fits = found["batch_size"] % (found["micro_batch"] * found["processes"] * nodes) == 0
    if batch is None or (micro is None and processes is None and nodes == 1):
        assert fits
    assert found["micro_batch"] >= 2


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, USUAL),
        ({"batch_size": 16}, {"batch_size": 16, "micro_batch": 8, "processes": 2}),
        ({"batch_size": 50}, {"batch_size": 50, "micro_batch": 25, "processes": 2}),
        ({"batch_size": 7}, {"batch_size": 7, "micro_batch": 7, "processes": 1}),
        ({"micro_batch": 48}, {"batch_size": 96, "micro_batch": 48, "processes": 2}),
        ({"processes": 3}, {"batch_size": 66, "micro_batch": 22, "processes": 3}),
        ({"batch_size": 32, "micro_batch": 32}, {"batch_size": 32, "micro_batch": 32, "processes": 1}),
    ],
)
def test_batches_that_are_asked_for(asked: dict[str, int], found: dict[str, int]) -> None:
    made = TrainSettings.model_validate({**dict.fromkeys(USUAL), **asked})
    assert {name: getattr(made, name) for name in USUAL} == found
    overrides = [f"base.{name}={value}" for name, value in asked.items()]
    assert validate(RunConfig, compose_config("config", overrides)).base.micro_batch == found["micro_batch"]


def test_all_faults_of_a_config_are_told_in_one_line() -> None:
    with pytest.raises(UserError) as raised:
        validate(RunConfig, compose_config("config", ["base.epochs=-1", "finetune.epochs=0", "search.seed=x"]))
    line = str(raised.value)
    assert "\n" not in line
    for name in ("base.epochs", "finetune.epochs", "search.seed"):
        assert name in line


def test_a_data_folder_that_is_missing_is_told_by_a_dry_run(tmp_path: Path) -> None:
    overrides = ["data=imagefolder", f"data.path={tmp_path / 'nowhere'}", f"output_dir={tmp_path / 'out'}"]
    config = validate(RunConfig, compose_config("config", overrides))
    with pytest.raises(UserError, match=r"nowhere.*does not exist"):
        forecast(table_of(config), config, "report")
    assert list(tmp_path.iterdir()) == []
