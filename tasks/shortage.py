"""Errors of a machine that has run out of something."""

import torch

from profiling_agents.serving.store import NO_SPACE

NO_MEMORY = ("can't allocate memory", "bad_alloc", "out of memory", "STATUS_ALLOC_FAILED")
"""Signs of a shortage in the texts of errors without a type of their own: of torch's CPU allocator, C++, CUDA, NCCL."""
NO_KERNEL = "could not create a primitive"
"""The whole text of oneDNN's error where a kernel finds no memory for its code, or the tensors are too large for it."""


def shortage(error: BaseException) -> str | None:
    """The resource that has run out, in words; None for another error."""
    if is_out_of_memory(error):
        return "the memory is full"
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return "the disk is full"
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device or this machine had no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and (text == NO_KERNEL or any(words in text for words in NO_MEMORY))
