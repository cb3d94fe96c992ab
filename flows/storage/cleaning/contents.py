"""Contents at a URL that no folder refers to, from replaced stages and abandoned uploads.

A content is in use if the record of a folder, or of one being published (`flows.storage.publishing`), refers to it. Other
contents can be removed after a grace period: a machine that needs one again uploads it again.
"""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from flows.storage.cleaning.leftovers import Leftover, by_age
from flows.storage.layout import EXPORTS_FOLDER, STAGES_FOLDER
from flows.storage.manifests import FILES, RECORD_END, each, record_of
from flows.storage.mirror import Mirror
from flows.storage.objects import Objects
from flows.storage.publishing import CLEANING, PUBLISHING
from tasks.base.errors import UserError

CONTENT = re.compile(rf"{FILES}/[0-9a-f]{{64}}")
RECORDED = (PUBLISHING, STAGES_FOLDER, EXPORTS_FOLDER)
"""Places of records, in the order of reading: a record in `PUBLISHING` is removed once the folder has its own."""
ABANDONED_SECONDS = 24 * 3600.0
"""A folder that has been in publication for this long counts as abandoned [s]."""
TOGETHER = 100
"""Number of contents to remove between two checks of the lock."""


@dataclass(frozen=True, slots=True)
class ContentCleaner:
    """Removes unused contents of an output folder at a URL (`flows.storage.cleaning.leftovers.OutputCleaner`).

    older_than_s: the grace period [s]. clock: [s since 1970].
    """

    mirror: Mirror
    older_than_s: float
    clock: Callable[[], float] = time.time

    def look(self) -> list[Leftover]:
        """The current contents. UserError if there is no output folder, or a record in it cannot be read."""
        self.check()
        objects, now_s = self.mirror.objects, self.clock()
        sizes = {name: size for name, size in objects.sizes(FILES).items() if CONTENT.fullmatch(name)}
        used = self._used()
        free = [name for name in sizes if name not in used]
        ages_s = dict(zip(free, (max(0.0, now_s - at_s) for at_s in each(free, objects.modified)), strict=True))
        return [
            Leftover(
                kind="contents",
                name=name,
                size=size,
                age_s=ages_s.get(name),
                state=by_age(ages_s[name], self.older_than_s) if name in ages_s else "used",
            )
            for name, size in sizes.items()
        ]

    def remove(self, say: Callable[[str], None]) -> list[Leftover]:
        """Remove unused and old contents. Publishers wait until the end of this.

        UserError: also if this machine was silent for so long that it was considered dead.
        """
        self.check()
        objects, locks = self.mirror.objects, self.mirror.locks
        with locks.held(CLEANING, say) as number:
            found = self.look()
            names = [*(one.name for one in found if one.state == "old"), *self._abandoned()]
            for first in range(0, len(names), TOGETHER):
                if not locks.is_latest(CLEANING, number):
                    got = "this machine was silent for too long, and another one may be at it"
                    raise UserError(CLEANING, got, next_step="the same command goes on")
                each(names[first : first + TOGETHER], objects.remove)
        return [one.now("removed") if one.state == "old" else one for one in found]

    def check(self) -> None:
        """UserError if the URL is not an output folder of AutoTailor."""
        if not self.mirror.is_there():
            got = "has no output folder of AutoTailor"
            raise UserError(
                f"storage '{self.mirror.objects.url}'", got, next_step="write output_dir=URL as runs have it"
            )

    def _used(self) -> set[str]:
        """Names of the contents that records refer to. An unreadable record raises, since it may refer to any content."""
        objects, abandoned = self.mirror.objects, set(self._abandoned())
        used = set[str]()
        for folder in RECORDED:
            records = [name for name in objects.names(folder) if name.endswith(RECORD_END) and name not in abandoned]
            used.update(*each(records, partial(_contents, objects)))
        return used

    def _abandoned(self) -> Iterator[str]:
        """Names of the records of folders whose publisher died."""
        objects = self.mirror.objects
        names = objects.names(PUBLISHING)
        for name, at_s in zip(names, each(names, objects.modified), strict=True):
            if 0 < at_s < self.clock() - ABANDONED_SECONDS:
                yield name


def _contents(objects: Objects, record: str) -> set[str]:
    """Names of the contents that a record refers to; empty if the record was removed meanwhile."""
    content = objects.read(record)
    if content is None:
        return set()
    files = record_of(objects, record.removesuffix(RECORD_END), content).files
    return {f"{FILES}/{digest.sha256}" for digest in files.values()}
