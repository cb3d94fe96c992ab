"""Termination of child processes."""

import subprocess


def end(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """Close its standard input and terminate it; kill it after `grace_s` seconds."""
    if process.stdin is not None:
        process.stdin.close()
    process.terminate()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
