"""Finds the report of a complete run again without Prefect, MLflow, or a library that trains or draws.

A finished run leaves `complete.json` in its folder. The same command finds the run by this file, checks each stage as a run
does, puts the report and the exported files in their places, and ends. The normal run is used if anybody else needs the
results: a Prefect server, an MLflow server, other workers, or an output folder at a URL.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import tasks.base.pages
import tasks.report
from adaptive_runtime.base.files import sha256_of
from flows.config import FlowConfig
from flows.pipeline.tracking.addresses import address_of, database_of
from flows.pipeline.versions import code_version, library_versions
from flows.storage import is_shared
from importing import later_names
from tasks.base.artifacts import digest_of, read_json, write_bytes
from tasks.base.errors import UserError
from tasks.base.pages.text import PlainConsole
from tasks.base.schemas.stored import Stored
from tasks.report import DATA_FILE, PAGE_FILE

if TYPE_CHECKING:
    from flows.pipeline.stages.forecast import foreseen
    from flows.pipeline.stages.levels import readable_policies
    from flows.pipeline.stages.spec import StageSpec
    from flows.pipeline.stages.winners import readable_exports
    from flows.storage.sharing import run_locks
else:
    globals().update(later_names(__file__))

COMPLETE_FILE = "complete.json"
SERVER = "PREFECT_API_URL"
REPORT = "report"
CODE = ("tasks.report.gather", "tasks.report.page", "tasks.placement.partition.planning")
"""Modules that make a report, with the plans that it gets."""


class CompleteRun(Stored):
    """The sources of a run, and the part of its result that is not in the report.

    stages: the folder of each by its title. report: digests of its files by name. code: of the report. tracking: MLflow's
    address with the run.
    """

    STAGE: ClassVar[str] = REPORT

    stages: dict[str, str]
    report: dict[str, str]
    code: str
    tracking: str
    result: dict[str, Any]


def remember(config: FlowConfig, folder: Path, stages: Mapping[str, Path], result: Mapping[str, Any]) -> None:
    """Record in a run's folder that it is complete. stages: folders by title. result: the part that is not in the report."""
    CompleteRun(
        stages={title: str(stage) for title, stage in sorted(stages.items())},
        report=_report_in(folder),
        code=_code(),
        tracking=str(address_of(config.tracking.uri)),
        result=dict(result),
    ).write(folder / COMPLETE_FILE)


def is_remembered(config: FlowConfig) -> bool:
    """Whether the same run has ended before, and no server or other worker needs a new one."""
    alone = config.locks is None and SERVER not in os.environ and not is_shared(config.output_dir)
    return alone and (config.run_folder(REPORT) / COMPLETE_FILE).is_file()


def found_again(table: Sequence[StageSpec], config: FlowConfig) -> dict[str, Any] | None:
    """The result of a remembered run if all its stages are complete; None if something is to be worked or logged."""
    folder = config.run_folder(REPORT)
    try:
        known = CompleteRun.read(folder / COMPLETE_FILE)
        address = address_of(config.tracking.uri)
        file = database_of(address.uri)  # MLflow must have the run in a file that still exists
        is_reported = str(address) == known.tracking and file is not None and file.is_file()
        is_same = known.report == _report_in(folder) and known.code == _code() and is_reported
    except (UserError, OSError):
        is_same = False
    if not is_same:
        return None  # the run makes its report anew
    with run_locks(config.locks, config.folder, folder.name) as locks:
        expected, outputs = foreseen(table, config, REPORT)
        if known.stages != {row.stage: str(row.folder) for row in expected}:
            return None
        with locks.own_turn("results"):
            readable_exports(config, outputs)
            readable_policies(config, outputs)
            for name in (PAGE_FILE, DATA_FILE):
                write_bytes(config.folder / name, (folder / name).read_bytes())
    console, report = PlainConsole(stderr=True), read_json(folder / DATA_FILE)
    for row in expected:
        console.print(f"{row.stage}: found complete", markup=False, highlight=False)
    places = {"report_html": str(config.folder / PAGE_FILE), "run": str(folder)}
    stages = [{**row, "cached": True} for row in report["stages"]]
    return {**places, **report, "stages": stages, **known.result}


def _report_in(folder: Path) -> dict[str, str]:
    return {name: sha256_of(folder / name) for name in (PAGE_FILE, DATA_FILE)}


def _code() -> str:
    """A digest of the code, the templates and the libraries that make a report."""
    rooms = (Path(tasks.report.__file__).parent, Path(tasks.base.pages.__file__).parent)
    texts = (file for room in rooms for end in ("html", "css", "js", "svg") for file in sorted(room.rglob(f"*.{end}")))
    return digest_of(code_version(*CODE), [sha256_of(file) for file in texts], library_versions())
