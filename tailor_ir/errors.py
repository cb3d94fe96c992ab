"""Errors in a user's network, space or config: one clear line each."""


class TailorError(Exception):
    """Base of all errors of the IR. `str(error)` is one line: where, what it got, what is allowed, what to do next."""


class ImportFailed(TailorError):
    """A network could not be read, exported to ONNX, or uses something that the IR does not know."""


class MixedSamples(ImportFailed):
    """A network's answer to a sample hangs on the other samples of its batch; another axis may be the batch."""


class InputError(TailorError):
    """A network is called with other inputs than it has, has several where one is needed, or gets too few images."""


class SpaceError(TailorError):
    """A space asks for a variable or a choice that this network does not have or cannot take."""


class ConfigError(TailorError):
    """A config names an unknown variable or a choice that its variable does not have."""


class CheckFailed(TailorError):
    """A step has changed what a network computes, so that its result must not be used."""


class JoinError(TailorError):
    """Two networks do not have the part in common that one is to take from the other."""
