"""The user that runs models if the agent is root: a user without an account, files or processes."""

import os
import pwd
from pathlib import Path

from profiling_agents.sandbox import kernel

FIRST, LAST = 64200, 64899
"""Linux distributions leave this range free, and it is below 65536, so that most containers know it, too."""


def free_user() -> int | None:
    """The number of a user without an account or processes; None if this process cannot become another user."""
    if os.geteuid() != 0:
        return None
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    for status in Path("/proc").glob("[0-9]*"):
        try:
            taken.add(status.stat().st_uid)
        except OSError:  # ended meanwhile
            continue
    known = (user for user in range(FIRST, LAST + 1) if user not in taken)
    return next((user for user in known if _exists(user)), None)


def become(user: int, groups: list[int], *, read_everything: bool) -> None:
    """Become this user without capabilities, or only with the one to read all files if wanted. OSError when it fails."""
    if read_everything:
        kernel.process_control(kernel.PR_SET_KEEPCAPS, 1)
    os.setgroups(groups)
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    kernel.keep_capabilities(1 << kernel.CAP_DAC_READ_SEARCH if read_everything else 0)


def can_read(user: int, paths: list[Path]) -> bool:
    """Whether this user could read all of these paths; tried in a separate process."""
    child = os.fork()
    if child == 0:
        try:
            become(user, [], read_everything=False)
            os._exit(0 if all(os.access(path, os.R_OK) for path in paths) else 1)
        except OSError:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _exists(user: int) -> bool:
    """Whether this system, perhaps a container, knows the number."""
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _, count = map(int, line.split())
        if first <= user < first + count:
            return True
    return False
