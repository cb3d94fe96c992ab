"""MLflow's SQLite database, which appears under its name only when complete.

MLflow makes a database by dozens of migrations, which take several seconds. A process that is killed between two of them leaves
tables without a version number, and no later start can continue from there. A database is therefore made, or migrated to this
MLflow's version, as a copy under another name, and then renamed.
"""

import secrets
import sqlite3
from contextlib import closing, suppress
from itertools import count
from pathlib import Path

import mlflow
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from mlflow.exceptions import MlflowException
from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from sqlalchemy.exc import SQLAlchemyError

from flows.pipeline.tracking.addresses import CHOOSE, SQLITE
from profiling_agents.lines import no_space
from tasks.base.errors import UserError, shortened

MAKING = ".making"


def made_whole(file: Path) -> str | None:
    """Make MLflow's database, or migrate it; returns a line if a half-made one was set aside for it, else None.

    The caller has exclusive use of the file. The database of a newer MLflow is left as it is. UserError: a half-made one that
    has runs.
    """
    _remove_unfinished(file)
    found = _version(file)
    if found is not None and not _is_older(found):
        return None
    try:
        _publish(file, file if file.exists() else None)
    except (SQLAlchemyError, MlflowException, CommandError) as error:
        if no_space(error) or not file.exists():
            raise
        aside = _aside(file, error)
        _publish(file, None)
        was = "was left half-made by a run that was killed"
        return f"MLflow's database '{file}' {was}: set aside as '{aside}', and made anew"
    finally:
        _remove_unfinished(file)
    return None


def _publish(file: Path, source: Path | None) -> None:
    """Make a database, or migrate a copy of `source`, under a name that no connection knows, then rename it."""
    making = file.with_name(f".{file.name}.{secrets.token_hex(4)}{MAKING}")
    if source is not None:
        _copy(source, making)
    _migrate(making)
    making.replace(file)


def _is_older(version: str) -> bool:
    """Whether this MLflow knows the version and has a newer one."""
    scripts = ScriptDirectory(str(Path(mlflow.__file__).parent / "store" / "db_migrations"))
    return version not in scripts.get_heads() and version in {one.revision for one in scripts.walk_revisions()}


def _version(file: Path) -> str | None:
    """The version number in the database; None without one."""
    if not file.exists():
        return None
    with closing(sqlite3.connect(file, timeout=60)) as database, suppress(sqlite3.OperationalError):
        row = database.execute("SELECT version_num FROM alembic_version").fetchone()
        return None if row is None else str(row[0])
    return None


def _copy(file: Path, target: Path) -> None:
    """Copy the committed content, even if another process has the database open."""
    with closing(sqlite3.connect(file, timeout=60)) as source, closing(sqlite3.connect(target)) as copy:
        source.backup(copy)


def _migrate(file: Path) -> None:
    """Make all tables of a database that nobody else uses, then close it."""
    store = SqlAlchemyStore(f"{SQLITE}{file}", DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH)
    store.engine.dispose()


def _aside(file: Path, error: Exception) -> Path:
    """Move a half-made database away, and return its new path; UserError if it has runs, which the user may want to save."""
    if _has_runs(file):
        raise UserError(
            f"MLflow's database '{file}'",
            f"has runs and was left half-made by a migration that was killed ({shortened(error)})",
            next_step=f"bring back a copy of it, or move it away, and a new one is made, or {CHOOSE}",
        ) from error
    aside = next(
        place for number in count(1) if not (place := file.with_name(f"{file.name}.half-made-{number}")).exists()
    )
    file.rename(aside)
    return aside


def _has_runs(file: Path) -> bool:
    with closing(sqlite3.connect(file, timeout=60)) as database, suppress(sqlite3.OperationalError):
        return database.execute("SELECT 1 FROM runs LIMIT 1").fetchone() is not None
    return False


def _remove_unfinished(file: Path) -> None:
    """Remove leftovers of this or a killed command; no other process makes this database now."""
    for left in file.parent.glob(f".{file.name}.*{MAKING}*"):
        left.unlink(missing_ok=True)
