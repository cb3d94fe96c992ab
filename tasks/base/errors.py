"""Errors that the user can fix, one clear line each, exit code 2, and errors of a machine without resources left."""

import sys

from adaptive_runtime.base.errors import AdaptiveError
from profiling_agents.lines import no_space

NO_MEMORY = ("can't allocate memory", "bad_alloc", "out of memory", "STATUS_ALLOC_FAILED")
"""Signs of a shortage in texts of errors without their own type: from torch's CPU allocator, C++, CUDA, NCCL."""
NO_KERNEL = "could not create a primitive"
"""The whole text of oneDNN's error if a kernel finds no memory for its code, or the tensors are too large for it."""
MAKE_ROOM = "make room, or ask for less; the same command goes on"


def shortage(error: BaseException) -> str | None:
    """The exhausted resource in words, with the first line of the error; None for other errors."""
    if is_out_of_memory(error):
        return f"the memory is full: {_first_line(error)}"
    if (found := no_space(error)) is not None:
        return f"the disk is full: {_first_line(found)}"
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device or this machine ran out of memory. torch is not imported: without it, no error is torch's."""
    torch = sys.modules.get("torch")
    if isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError)):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and (text == NO_KERNEL or any(words in text for words in NO_MEMORY))


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


class UserError(AdaptiveError):
    """Bad input of a command: place, value, allowed values, next step. `str(error)` is the finished line."""


def shortened(error: BaseException, length: int = 200) -> str:
    """The message of an exception in one line, truncated if it is long."""
    text = " ".join(str(error).split())
    return text if len(text) <= length else text[:length] + "…"
