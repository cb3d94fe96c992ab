"""A stage that runs out of memory or disk is one line, keeps what it has, and goes on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.config import RunConfig
from flows.config.compose import compose_config
from flows.config.validate import validate
from flows.pipeline.run import StageRun
from flows.pipeline.session import open_run
from tasks.base.errors import UserError
from tasks.base.progress import Progress
from tests.support.flows.tiny import TINY

KEPT = "kept.txt"


def fill_memory() -> None:
    np.zeros(2**50)


def fill_disk() -> None:
    with Path("/dev/full").open("w") as stream:
        stream.write("x")


@pytest.mark.long
@pytest.mark.parametrize(
    ("fill", "line"),
    [
        (fill_memory, r"^enumerate: the memory is full: Unable to allocate .*; make room, or ask for less; the same"),
        (fill_disk, r"^enumerate: the disk is full: .*No space left on device; make room, .*the same command goes on$"),
    ],
)
def test_what_has_run_out_is_one_line_and_nothing_is_lost(fill: Callable[[], None], line: str, tmp_path: Path) -> None:
    config = validate(RunConfig, compose_config("config", [*TINY, f"output_dir={tmp_path / 'out'}"]))
    stage = StageRun(
        name="enumerate", modules=("tasks.measuring.operators",), settings={}, inputs=(line,), artifacts=()
    )

    def body(out: Path, _: Progress) -> dict[str, Any]:
        if not (out / KEPT).exists():
            (out / KEPT).write_text("1\n")
            fill()
        return {"lines": (out / KEPT).read_text()}

    with open_run(config, "enumerate") as run:
        with pytest.raises(UserError, match=line):
            run.execute(stage, body)
        assert run.execute(stage, body).result["lines"] == "1\n"
