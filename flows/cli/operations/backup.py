"""`autotailor backup` and `autotailor restore`: the parts of a backup, their sources and their targets."""

from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from rich.markup import escape
from rich.table import Table

from flows.cli.arguments import BACKUP, RESTORE, Arguments
from flows.cli.terminal import Terminal
from flows.config.compose import compose_config
from flows.config.validate import validate
from flows.machine.locks import in_turn, only_run
from tasks.base.errors import UserError
from tasks.operations.backup import (
    BackupPart,
    BackupStore,
    Manifest,
    RestoreTarget,
    at_work,
    database_at,
    restore,
    take_folder,
)
from tasks.operations.backup.manifest import DUMP
from tasks.operations.backup.store import DUMPING

BackupAnswer = Mapping[str, Any]
AUTO = "auto"
FOLDERS = ("output_dir", "artifacts", "bundles", "keys")
DATABASES = ("mlflow", "registry", "prefect")
PARTS = (*FOLDERS, *DATABASES)
"""Parts of a backup, named by the options that locate them."""
OF_ONE = {BACKUP: ("keep",), RESTORE: ("at", "check", "overwrite")}
"""Options that only one of the two commands has."""


class BackupConfig(BaseModel):
    """Locations of all parts (null: left out), and the options of the two commands."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    output_dir: str | None = "outputs"
    mlflow: str | None = AUTO
    artifacts: str | None = AUTO
    registry: str | None = "sqlite:///fleet/fleet.db"
    bundles: str | None = "fleet/files"
    prefect: str | None = None
    keys: str | None = None
    keep: int | None = Field(default=None, ge=1)
    at: str | None = None
    check: bool = False
    overwrite: bool = False


def config_of(arguments: Arguments) -> BackupConfig:
    """The validated config. UserError for options of the other command, or if there is not exactly one folder."""
    if len(arguments.words) != 1:
        form = f"autotailor {arguments.command} FOLDER"
        raise UserError(
            arguments.command, f"got {len(arguments.words)} folders", allowed="one", next_step=f"write {form}"
        )
    for key in _given(arguments):
        for command, options in OF_ONE.items():
            if key in options and command != arguments.command:
                raise UserError(f"option '{key}'", f"is one of '{command}'")
    return validate(BackupConfig, compose_config(BACKUP, arguments.overrides, arguments.config_folder))


def execute(arguments: Arguments) -> BackupAnswer:
    """Execute the command, show its result, and return it as JSON. UserError: one line."""
    config, folder = config_of(arguments), Path(arguments.words[0])
    if arguments.command == BACKUP:
        return _backup(BackupStore(folder), config, _given(arguments))
    return _restore(BackupStore(folder), config)


def _given(arguments: Arguments) -> set[str]:
    return {override.split("=", 1)[0].lstrip("+~") for override in arguments.overrides}


def _backup(store: BackupStore, config: BackupConfig, given: set[str]) -> BackupAnswer:
    places = _places(config)
    missing = {part for part, place in places.items() if not _is_there(place)}
    for part in missing:
        if part in given:
            raise UserError(part, f"there is nothing at '{_where(places[part])}'", next_step="null leaves it out")
    if not places.keys() - missing:
        raise UserError(BACKUP, "there is nothing to keep", next_step="name it: output_dir=FOLDER registry=ADDRESS …")
    store.make()
    with in_turn(f"backup {store.folder.resolve()}"):
        try:
            store.sweep()
            parts = {part: _taken(store, place) for part, place in places.items() if part not in missing}
            made_at = datetime.now(UTC).isoformat()
            name = store.finish(Manifest(made_at=made_at, autotailor=version("autotailor"), parts=parts))
            pruned = 0 if config.keep is None else store.prune(config.keep)
        except OSError as error:
            got = f"{error.strerror}: '{error.filename or store.folder}'"
            raise UserError(BACKUP, got, next_step="backups that were made before are as they were") from error
    _show(f"backup {name}", {part: f"none at {_where(places[part])}" for part in missing}, parts)
    return {"backup": name, "parts": _sizes(parts), "missing": sorted(missing), "pruned": pruned}


def _taken(store: BackupStore, place: RestoreTarget) -> BackupPart:
    if not isinstance(place, Path):
        with TemporaryDirectory(prefix=DUMPING, dir=store.folder) as private:
            dump = Path(private) / DUMP
            place.dump(dump)
            return BackupPart(kind=place.kind, place=place.where, files={DUMP: store.put(dump)})
    files = {}
    with ExitStack() as stack:  # stages that a run is working on are left out: copies would be incomplete
        if _is_at_rest(place, stack):
            files = take_folder(store, place, at_work)
    files |= take_folder(store, place, lambda name: not at_work(name))
    return BackupPart(kind="folder", place=str(place), files=files)


def _is_at_rest(folder: Path, stack: ExitStack) -> bool:
    """Whether no run works in a folder; no run can start there until the stack is closed."""
    if not (folder / "stages").is_dir():
        return False
    try:
        stack.enter_context(only_run(folder))
    except UserError:
        return False
    return True


def _restore(store: BackupStore, config: BackupConfig) -> BackupAnswer:
    manifest = store.read(config.at)
    if config.check:
        found = list(store.damage(manifest))
        if found:
            raise UserError(f"backup of {manifest.made_at}", f"{found[0]} (and {len(found) - 1} more)")
        _show(f"backup of {manifest.made_at}: whole", {}, manifest.parts)
        return {"made_at": manifest.made_at, "parts": _sizes(manifest.parts), "whole": True}
    places = _places(config)
    targets = {part: places[part] for part in manifest.parts if part in places}
    stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    with ExitStack() as stack:
        for target in targets.values():
            if isinstance(target, Path) and (target / "stages").is_dir():
                stack.enter_context(only_run(target))
        before = restore(store, manifest, targets, overwrite=config.overwrite, stamp=stamp)
    aside = {part: f"what was there: {place}" for part, place in before.items() if place is not None}
    left = dict.fromkeys(manifest.parts.keys() - targets.keys(), "left out")
    _show(f"backup of {manifest.made_at}", aside | left, {part: manifest.parts[part] for part in targets})
    return {
        "made_at": manifest.made_at,
        "restored": {part: _where(target) for part, target in targets.items()},
        "before": {part: None if place is None else str(place) for part, place in before.items()},
        "left_out": sorted(left),
    }


def _places(config: BackupConfig) -> dict[str, RestoreTarget]:
    """The location of each part. UserError for an invalid address."""
    from flows.pipeline.tracking.addresses import address_of

    tracking = address_of(None if config.mlflow in (AUTO, None) else config.mlflow)
    found: dict[str, RestoreTarget] = {}
    for part in DATABASES:  # before folders: files are written before a database names them
        value = getattr(config, part)
        if part == "mlflow" and value == AUTO:
            value = None if tracking.uri.startswith("http") else tracking.uri  # servers back up their own
        if value is not None:
            found[part] = database_at(value, part)
    for part in FOLDERS:
        value = getattr(config, part)
        if value == AUTO:
            value = None if config.mlflow is None else tracking.artifacts
        if value is not None and "://" in str(value):
            raise UserError(part, f"'{value}' is no folder of this machine", next_step="its store keeps copies itself")
        if value is not None:
            found[part] = Path(value)
    return found


def _is_there(place: RestoreTarget) -> bool:
    return place.is_dir() if isinstance(place, Path) else place.exists()


def _where(place: RestoreTarget) -> str:
    return str(place) if isinstance(place, Path) else place.where


def _sizes(parts: Mapping[str, BackupPart]) -> dict[str, Any]:
    return {name: {"place": part.place, "files": len(part.files), "bytes": part.size} for name, part in parts.items()}


def _show(title: str, notes: Mapping[str, str], parts: Mapping[str, BackupPart]) -> None:
    table = Table("part", "files", "MiB", "", title=escape(title), title_justify="left")
    for name in PARTS:
        if name in parts:
            size = f"{parts[name].size / 2**20:.1f}"
            table.add_row(name, str(len(parts[name].files)), size, escape(notes.get(name, parts[name].place)))
        elif name in notes:
            table.add_row(name, "–", "–", escape(notes[name]))
    if "keys" not in parts:
        table.add_row("keys", "–", "–", "left out: keys=FOLDER keeps a folder of secrets")
    Terminal().show(table)
