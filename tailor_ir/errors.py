"""Errors in a user's network, space or config: one clear message line each."""


class TailorError(Exception):
    """Base of all errors of the IR. `str(error)` is one line: place, actual value, allowed values, and the next step."""


class ImportFailed(TailorError):
    """A network could not be read, exported to ONNX, or uses something that the IR does not know."""


class MixedSamples(ImportFailed):
    """A network's answer to a sample depends on the other samples of its batch; another axis may be the batch."""


class InputError(TailorError):
    """A network is called with wrong inputs, has several inputs where one is needed, or gets too few images."""


class SpaceError(TailorError):
    """A space names a variable or a choice that this network does not have or cannot support."""


class ConfigError(TailorError):
    """A config names an unknown variable or a choice that its variable does not have."""


class CheckFailed(TailorError):
    """A step changed the function that a network computes; its result must not be used."""


class JoinError(TailorError):
    """Two networks do not share the part that one is to take from the other."""


def first_line(error: Exception) -> str:
    """The first line of an error's message, or its type without one."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
