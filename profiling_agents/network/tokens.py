"""The token of a service: read from the user's file or variable, or generated."""

import os
import stat
from pathlib import Path

from profiling_agents.messages import AgentError

MIN_TOKEN_LENGTH = 16


def read_token(path: Path | None, variable: str, option: str = "--token-file") -> str | None:
    """The token from the file of an option, else from an environment variable, or None.

    AgentError if it is unsafe to use.
    """
    if path is None:
        token, where = os.environ.get(variable), variable
    else:
        where = f"{option} '{path}'"
        try:
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                raise AgentError(f"{where}: others can read it; make it private with chmod 600")
            token = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise AgentError(f"{where}: cannot be read ({error})") from error
    if token is None:
        return None
    if len(token) < MIN_TOKEN_LENGTH or not token.isascii() or not token.isprintable() or " " in token:
        raise AgentError(f"{where}: not a token; allowed: at least {MIN_TOKEN_LENGTH} printable characters, no spaces")
    return token


def new_token(folder: Path, whose: str) -> str:
    """A random token in a new 0600 file; the file's name is printed, together with the service's."""
    token = os.urandom(32).hex()
    path = folder / "token"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
        stream.write(token + "\n")
    print(f"{whose} token: {path}", flush=True)
    return token
