"""Ending child processes, whatever they do."""

import subprocess


def end(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """Close its standard input and ask it to end; after `grace_s` seconds, make it."""
    if process.stdin is not None:
        process.stdin.close()
    process.terminate()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
