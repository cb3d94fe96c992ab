"""Publish a folder while another machine may remove contents that no folder refers to (`flows.storage.cleaning.contents`).

    publishing/ID.json      the record of a folder that is being published: its files count as referred to

A publisher writes this record first, and then waits for a removal in progress before it checks which files exist already. A
remover takes the lock first, and then reads all records. Either the remover sees this record, or the publisher waits for it: a
file that was found at the URL still exists when the folder's own record is written.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from uuid import uuid4

from flows.storage.leases import Locks
from flows.storage.manifests import RECORD_END
from flows.storage.objects import Objects
from tasks.base.artifacts.digests import FolderRecord
from tasks.base.errors import UserError

PUBLISHING = "publishing"
CLEANING = "cleaning"
"""Name of the lock that removers hold."""


@contextmanager
def announced(
    objects: Objects, locks: Locks, record: FolderRecord, say: Callable[[str], None] = print
) -> Iterator[None]:
    """The block publishes a folder with this record; none of its files is removed meanwhile.

    say: is called with the machine whose removal it waits for.
    """
    name = f"{PUBLISHING}/{uuid4().hex}{RECORD_END}"
    objects.write(name, record.content())
    try:
        locks.pass_by(CLEANING, say)
        yield
    finally:
        with suppress(UserError):  # its files then stay a day longer
            objects.remove(name)
