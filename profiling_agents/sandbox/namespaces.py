"""A network of its own for this process, with no device but a loopback that is down; its own shared memory, too."""

import os
from pathlib import Path

from profiling_agents.sandbox import kernel

NEW_USER, NEW_NETWORK, NEW_SHARED_MEMORY = 0x10000000, 0x40000000, 0x08000000
OWN = Path("/proc/self")


def leave_network() -> None:
    """Enter namespaces without a network. OSError if the kernel refuses.

    A user other than root becomes the same user of a new user namespace, without capabilities there. The process must not have
    threads yet.
    """
    if os.geteuid() == 0:
        kernel.unshare(NEW_NETWORK | NEW_SHARED_MEMORY)
        return
    user, group = os.geteuid(), os.getegid()
    kernel.unshare(NEW_USER | NEW_NETWORK | NEW_SHARED_MEMORY)
    (OWN / "setgroups").write_text("deny")
    (OWN / "uid_map").write_text(f"{user} {user} 1")
    (OWN / "gid_map").write_text(f"{group} {group} 1")
    kernel.keep_capabilities(0)
