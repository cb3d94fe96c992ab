"""The keys of hosts that ssh reaches: those that the user's own ssh knows, and no others."""

from pathlib import Path

from paramiko import HostKeys, MissingHostKeyPolicy, PKey, SSHClient, SSHException

KNOWN_HOSTS = (Path("~/.ssh/known_hosts"), Path("/etc/ssh/ssh_known_hosts"))


class KnownHosts(MissingHostKeyPolicy):
    """Takes a host whose key `known_hosts` has. SSHException for any other host, which may be another machine."""

    def missing_host_key(self, client: SSHClient, hostname: str, key: PKey) -> None:
        for file in KNOWN_HOSTS:
            path = file.expanduser()
            if path.is_file() and HostKeys(str(path)).check(hostname, key):
                return
        raise SSHException(f"the key of host {hostname} is not in known_hosts; connect to it once with ssh")
