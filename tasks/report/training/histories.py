"""The histories of the trainings of a run."""

from pathlib import Path

from tasks.base.artifacts import read_lines
from tasks.base.schemas.results import HISTORY_FILE
from tasks.report.looks import Row
from tasks.report.sources import PretrainingSources, Sources


def histories(sources: Sources) -> dict[str, list[Row]]:
    """The lines of each training of the run, by its name."""
    folders = {**_first(sources.pretraining), "base network": sources.base, "fine-tuning": sources.finetune}
    found = {name: read_lines(folder / HISTORY_FILE) for name, folder in folders.items() if folder}
    return {name: rows for name, rows in found.items() if rows}


def _first(sources: PretrainingSources | None) -> dict[str, Path | None]:
    """Folders of the first of two training stages."""
    return {} if sources is None else {"backbone": sources.trained, "SuperNet of the backbone": sources.distilled}
