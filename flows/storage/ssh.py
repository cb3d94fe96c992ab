"""Keys of ssh hosts: only hosts that the user's own ssh knows are accepted."""

from pathlib import Path

from paramiko import HostKeys, MissingHostKeyPolicy, PKey, SSHClient, SSHException

KNOWN_HOSTS = (Path("~/.ssh/known_hosts"), Path("/etc/ssh/ssh_known_hosts"))


class KnownHosts(MissingHostKeyPolicy):
    """Accepts hosts with their key in `known_hosts`. SSHException for any other host, which may be an impostor."""

    def missing_host_key(self, client: SSHClient, hostname: str, key: PKey) -> None:
        for file in KNOWN_HOSTS:
            path = file.expanduser()
            if path.is_file() and HostKeys(str(path)).check(hostname, key):
                return
        raise SSHException(f"the key of host {hostname} is not in known_hosts; connect to it once with ssh")
