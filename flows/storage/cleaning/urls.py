"""An output folder at a URL: remains of killed machines, damaged folders set aside, unreferenced stages, and contents.

A stage in progress has a lock there (`flows.storage.leases`), whose holder keeps its partial results while it lives. A complete
stage is removed by its record, which marks its files as in use; the files are then removed as contents.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from flows.storage.cleaning.contents import ContentCleaner
from flows.storage.cleaning.leftovers import Leftover, LeftoverKind, by_age
from flows.storage.cleaning.references import referred_at
from flows.storage.layout import STAGES_FOLDER
from flows.storage.manifests import DAMAGED, RECORD_END, each, record_of
from flows.storage.mirror import Mirror
from flows.storage.unfinished import UNFINISHED
from tasks.base.artifacts.digests import DIGEST_LENGTH

_KEY = rf"[0-9a-f]{{{DIGEST_LENGTH}}}"
OF_STAGE = re.compile(rf"{UNFINISHED}/(?P<stage>.+/{_KEY})/[0-9]+(?:{re.escape(RECORD_END)}|/[0-9a-f]{{64}})")
RECORD = re.compile(rf"{STAGES_FOLDER}/.+/{_KEY}{re.escape(RECORD_END)}")


class _AtUrl(NamedTuple):
    """A leftover at the URL. names: its objects, in the order of removal. stage: the stage whose lock protects it, if any."""

    leftover: Leftover
    names: tuple[str, ...]
    stage: str | None


@dataclass(frozen=True, slots=True)
class UrlCleaner:
    """Cleans an output folder at a URL (`flows.storage.cleaning.leftovers.OutputCleaner`).

    older_than_s: minimum age for removal [s]. stages: whether complete stages count, too. clock: [s since 1970].
    """

    mirror: Mirror
    older_than_s: float
    stages: bool = False
    clock: Callable[[], float] = time.time

    def look(self) -> list[Leftover]:
        """The current leftovers. UserError: also if a run does not list its stages."""
        self._contents.check()
        return [*(one.leftover for one in self._found()), *self._contents.look()]

    def remove(self, say: Callable[[str], None]) -> list[Leftover]:
        """Remove old leftovers. If somebody may be at a stage, this waits for the lease of its lock."""
        self._contents.check()
        found = list(self._found())
        old = [one for one in found if one.leftover.state == "old"]
        silent = self.mirror.locks.silent({one.stage for one in old if one.stage}, say)
        used = referred_at(self.mirror) if self.stages else set[str]()
        told = [self._removed(one, silent, used) if one.leftover.state == "old" else one.leftover for one in found]
        return [*told, *self._contents.remove(say)]

    @property
    def _contents(self) -> ContentCleaner:
        return ContentCleaner(self.mirror, self.older_than_s, self.clock)

    def _found(self) -> Iterator[_AtUrl]:
        yield from self._unfinished()
        sizes = self.mirror.objects.sizes(DAMAGED)
        for name, written_s in self._written(sizes).items():
            yield _AtUrl(self._leftover("damaged", name, sizes[name], written_s), (name,), None)
        if self.stages:
            yield from self._complete()

    def _unfinished(self) -> Iterator[_AtUrl]:
        sizes = self.mirror.objects.sizes(UNFINISHED)
        written_s = self._written(sizes)
        stages: dict[str, list[str]] = {}
        for name in sizes:
            if match := OF_STAGE.fullmatch(name):
                stages.setdefault(match["stage"], []).append(name)
        for stage, names in stages.items():
            size, latest_s = sum(sizes[name] for name in names), max(written_s[name] for name in names)
            records_first = tuple(sorted(names, key=lambda name: not name.endswith(RECORD_END)))
            yield _AtUrl(self._leftover("unfinished", f"{UNFINISHED}/{stage}", size, latest_s), records_first, stage)

    def _complete(self) -> Iterator[_AtUrl]:
        used = referred_at(self.mirror)
        names = [name for name in self.mirror.objects.names(STAGES_FOLDER) if RECORD.fullmatch(name)]
        sizes = dict(zip(names, each(names, self._size), strict=True))
        for name, written_s in self._written(names).items():
            stage = name.removesuffix(RECORD_END)
            found = self._leftover("stages", stage, sizes[name], written_s)
            yield _AtUrl(found.now("used") if _in(used, stage) else found, (name,), stage)

    def _written(self, names: Iterable[str]) -> dict[str, float]:
        """Last write of each object [s since 1970]."""
        return dict(zip(names, each(names, self.mirror.objects.modified), strict=True))

    def _size(self, record: str) -> int:
        """Size of a folder's files [bytes], which other folders may share; 0 if the folder was removed meanwhile."""
        content = self.mirror.objects.read(record)
        if content is None:
            return 0
        files = record_of(self.mirror.objects, record.removesuffix(RECORD_END), content).files
        return sum(file.size for file in files.values())

    def _leftover(self, kind: LeftoverKind, name: str, size: int, written_s: float) -> Leftover:
        age_s = max(0.0, self.clock() - written_s)
        return Leftover(kind=kind, name=name, size=size, age_s=age_s, state=by_age(age_s, self.older_than_s))

    def _removed(self, one: _AtUrl, silent: set[str], used: set[str]) -> Leftover:
        """Remove an old leftover, unless somebody is at its stage, or refers to it since the look; its new state."""
        if one.stage is not None and one.stage not in silent:
            return one.leftover.now("at work")
        if one.leftover.kind == "stages" and _in(used, one.leftover.name):
            return one.leftover.now("used")
        for name in one.names:
            self.mirror.objects.remove(name)
        return one.leftover.now("removed")


def _in(used: set[str], stage: str) -> bool:
    return stage.removeprefix(f"{STAGES_FOLDER}/") in used
