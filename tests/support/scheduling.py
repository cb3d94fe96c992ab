"""How tests are divided among workers, and what is left of a worker that crashed. A plugin of pytest."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

SHARED_RUNS = {"finished", "command", "adapting", "adapted", "trained_stages"}
"""Fixtures that run the whole pipeline: tests that use them go to one worker, so that each runs once."""

SHARED_FOLDERS = {"report"}
"""Folders whose tests go to one worker, since they look at one report."""


class ByFile(LoadFileScheduling):
    """Tests of one file share a worker, and so do all files of a folder that need the same finished run.

    If a worker crashes, its test fails and another worker runs its other tests. xdist 3.8 deals finished tests once more,
    whereupon all workers wait for each other (pytest-xdist issue 1378), or for a second test (1327).
    """

    def _split_scope(self, nodeid: str) -> str:
        path, _, _ = nodeid.partition("::")
        folder = path.rpartition("/")[0]
        return (
            folder if folder.rpartition("/")[2] in SHARED_FOLDERS or _needs_run(self.config.rootpath / path) else path
        )

    def remove_node(self, node: Any) -> str | None:
        """The test that the worker crashed in; None if it had done its tests."""
        files = self.assigned_work.pop(node)
        left = {file: [test for test, done in tests.items() if not done] for file, tests in files.items()}
        crashed = next((test for tests in left.values() for test in tests), None)
        for file, tests in left.items():
            if again := {test: False for test in tests if test != crashed}:
                self.workqueue[file] = again
        for other in self.assigned_work:
            self._reschedule(other)
        return crashed

    def _reschedule(self, node: Any) -> None:
        if self.workqueue and node not in self.registered_collections:
            return  # a worker in the place of a crashed one is asked again once it has collected its tests
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)  # a worker starts a test once it knows the next one, or that there is none


@cache
def _needs_run(file: Path) -> bool:
    """Whether a file has a test that takes a finished run; asked for each test, and read once."""
    text = file.read_text(encoding="utf-8")
    return any(f"{name}: " in text for name in SHARED_RUNS)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """How tests are divided among workers."""
    return ByFile(config, log)
