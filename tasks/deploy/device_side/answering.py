"""Requests on stdin, answers on stdout.

A request is the length of a JSON text as ten digits, then the text: [step, arguments]. After step `put` the file's bytes
follow. An answer is a line of JSON: {"found": …}, or {"refused": line}, after which the process ends.
"""

import errno
import json
import subprocess
import sys
import zipfile

from tasks.deploy.device_side.programs import StepRefused
from tasks.deploy.device_side.steps import DeploymentSteps

LENGTH_DIGITS = 10


def line_of(error: Exception) -> str:
    """The error's message in one line."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no room is left there ({error.filename or error.strerror}); make some, or deploy.folder=ANOTHER"
    if isinstance(error, OSError) and error.filename is not None:
        return f"'{error.filename}': {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def main() -> int:
    """Answer requests until stdin ends or a step is refused."""
    steps, requests = DeploymentSteps(), sys.stdin.buffer
    while len(head := requests.read(LENGTH_DIGITS)) == LENGTH_DIGITS:
        step, arguments = json.loads(requests.read(int(head)))
        try:
            answer = {"found": getattr(steps, step)(**arguments)}
        except (StepRefused, OSError, subprocess.SubprocessError, zipfile.BadZipFile) as error:
            answer = {"refused": line_of(error)}
        print(json.dumps(answer), flush=True)
        if "refused" in answer:
            return 1
    return 0
