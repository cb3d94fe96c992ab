"""The frame around a run: MLflow hears how it ended."""

from pathlib import Path

import pytest

from flows.config import RunConfig
from flows.config.compose import compose_config
from flows.config.validate import validate
from flows.pipeline.progress import Stopped
from flows.pipeline.session import open_run
from tests.support.flows.databases import database_in
from tests.support.flows.tiny import TINY


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt(), "KILLED"), (Stopped(), "KILLED"), (RuntimeError(), "FAILED")]
)
def test_a_run_that_is_ended_does_not_stay_running(error: BaseException, status: str, tmp_path: Path) -> None:
    words = [*TINY, f"output_dir={tmp_path / 'out'}", f"tracking.uri={database_in(tmp_path)}"]
    config = validate(RunConfig, compose_config("config", words))
    with pytest.raises(type(error)), open_run(config, "enumerate") as run:  # noqa: PT012
        tracker = run.tracker
        stage = tracker.start_stage("compile", "abc")
        raise error
    assert tracker.client.get_run(tracker.run_id).info.status == status
    assert tracker.client.get_run(stage).info.status == "KILLED"
