"""Backups of everything that counts, and the way back: folders file by file, databases by what their makers give for it."""

from tasks.operations.backup.databases import Database, database_at, plain_address
from tasks.operations.backup.folders import at_work, is_passing, take_folder
from tasks.operations.backup.manifest import BackupPart, Manifest
from tasks.operations.backup.restoring import RestoreTarget, restore
from tasks.operations.backup.store import BackupStore

__all__ = [
    "BackupPart",
    "BackupStore",
    "Database",
    "Manifest",
    "RestoreTarget",
    "at_work",
    "database_at",
    "is_passing",
    "plain_address",
    "restore",
    "take_folder",
]
