"""Publishing a folder while somebody may remove contents that no folder refers to (`flows.cleaning.contents`).

    publishing/ID.json      the record of a folder that is on its way: its files count as referred to

Whoever publishes writes this record first, and then waits where a removal is under way, before it looks which files are there
already. Whoever removes takes the lock first, and then reads all records. So either it sees this one, or it is waited for: a
file that was found at the URL is still there when the folder's own record is written.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from uuid import uuid4

from flows.storage.leases import Locks
from flows.storage.manifests import RECORD_END
from flows.storage.objects import Objects
from tasks.artifacts.digests import FolderRecord
from tasks.errors import UserError

PUBLISHING = "publishing"
CLEANING = "cleaning"
"""The lock of whoever removes contents."""


@contextmanager
def announced(
    objects: Objects, locks: Locks, record: FolderRecord, say: Callable[[str], None] = print
) -> Iterator[None]:
    """The block publishes a folder of this record, none of whose files is removed meanwhile.

    say: hears whose removal it waits for.
    """
    name = f"{PUBLISHING}/{uuid4().hex}{RECORD_END}"
    objects.write(name, record.content())
    try:
        locks.pass_by(CLEANING, say)
        yield
    finally:
        with suppress(UserError):  # then its files stay for a day longer
            objects.remove(name)
