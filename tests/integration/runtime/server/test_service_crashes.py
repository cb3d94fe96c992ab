"""A SubNet that ends the whole process, inside of the runtime: a service that is started again goes on without it."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from adaptive_runtime.bundle.bundles import OpenBundle
from adaptive_runtime.server.bundles import CRASHED_FILE, LAST_STACKS_FILE, STACKS_FILE, Crash, CrashedSubNets
from adaptive_runtime.server.options import TOKEN_VARIABLE
from adaptive_runtime.server.protocol import MOST_SAMPLES
from tests.support.runtime.failing_variant import CRASHES_FROM, make_first_fail, put_first
from tests.support.runtime.service_process import INFER, TOKEN, Served, ask, body, images, served, soon
from tests.support.threads import beside

CRASHES = """
import ctypes, sys
import onnxruntime

class CrashingSession(onnxruntime.InferenceSession):
    def __init__(self, *given, **named):
        try:
            super().__init__(*given, **named)
        except Exception:
            ctypes.string_at(0)

    def run_with_iobinding(self, *given):
        try:
            super().run_with_iobinding(*given)
        except Exception:
            ctypes.string_at(0)

onnxruntime.InferenceSession = CrashingSession
from adaptive_runtime.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""The command with a runtime that reads the address 0 where it would raise an error: a real segmentation fault."""
CRASHES_BESIDE = """
import ctypes, sys, threading
from adaptive_runtime.cli import main
threading.Thread(target=lambda: sys.stdin.read(1) and ctypes.string_at(0), daemon=True).start()
sys.exit(main(sys.argv[1:]))
"""
"""The command with a thread that does so, and is none of the run time's, when it reads a character."""
CRASHES_INSIDE = """
import ctypes, sys, threading
from pathlib import Path
import adaptive_runtime
from adaptive_runtime.server.bundles import crashes_recorded
class SignalEvent(ctypes.Structure):  # struct sigevent
    _fields_ = [("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("notify", ctypes.c_int),
                ("function", ctypes.c_void_p), ("rest", ctypes.c_byte * 40)]
bundle, state, digest = sys.argv[1:]
with adaptive_runtime.load(bundle, prepares=False) as model, crashes_recorded(Path(state), digest):
    barrier = threading.Barrier(3)
    def run():
        barrier.wait()
        threading.Event().wait()
    for variant in model.pool.whole_variants:
        threading.Thread(target=model.pool.answerer(variant).work, args=(run,), daemon=True).start()
    barrier.wait()
    libc, timer = ctypes.CDLL(None), ctypes.c_void_p()
    in_a_thread = SignalEvent(notify=2, function=ctypes.cast(libc.abort, ctypes.c_void_p))
    assert libc.timer_create(1, ctypes.byref(in_a_thread), ctypes.byref(timer)) == 0
    assert libc.timer_settime(timer, 0, (ctypes.c_long * 4)(0, 0, 1, 0), None) == 0
    threading.Event().wait()
"""
"""Two SubNets run, each in a thread, when a thread that the interpreter does not know aborts, as one of a runtime's own.

A timer of the C library starts the thread after a second, when all others wait: the interpreter's fault handler may crash
itself when it reads the stack of a thread that runs.
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir()
    return folder


def service_of(code: str) -> tuple[str, ...]:
    return sys.executable, "-c", code


def line_of(digest: str, state: Path) -> str:
    """Why a SubNet was taken out."""
    again = f"to try it again, remove '{state / CRASHED_FILE}' and restart the service"
    return f"SubNet {digest} is taken out: the service crashed while it ran (Segmentation fault); {again}"


def taken_out(service: Served) -> list[str]:
    return list(service.state()["model"]["taken_out"])


@pytest.mark.few(1)
@pytest.mark.parametrize("adapts", [(), ("--adapts", "--budget-ms", "300000")])
def test_a_subnet_that_ends_the_process_serves_no_more_after_the_restart(
    copy: Path, tmp_path: Path, state: Path, adapts: tuple[str, ...]
) -> None:
    first, second = make_first_fail(copy)
    options, command, crashing = ("--state", str(state), *adapts), service_of(CRASHES), images(value=CRASHES_FROM)
    with served(copy, tmp_path / "log", *options, command=command) as service:
        assert ask(service, images())["subnet"] == first
        assert soon(lambda: first in (state / "serving.json").read_text())
        with pytest.raises(httpx.TransportError):
            service.http.post(INFER, **body(crashing))
        assert service.process.wait(60) == -signal.SIGSEGV
    for start in range(2):
        with served(copy, tmp_path / f"log{start}", *options, command=command) as service:
            assert ask(service, crashing)["subnet"] == second
            assert taken_out(service) == [first]
            assert service.http.post(INFER, **body(images(), subnet=first)).status_code == 503
            assert "\nautotailor_taken_out_subnets 1.0\n" in service.http.get("/metrics").text
            assert [line for line in service.lines() if "preparing it failed" not in line] == [line_of(first, state)]
    assert not (state / STACKS_FILE).exists()
    assert "Segmentation fault" in (state / LAST_STACKS_FILE).read_text()
    (state / CRASHED_FILE).unlink()
    with served(copy, tmp_path / "log", *options, command=command) as service:
        assert taken_out(service) == []
        assert ask(service, images(), subnet=first)["subnet"] == first


@pytest.mark.long
def test_a_subnet_that_ends_the_process_when_it_is_loaded_stops_one_start_alone(
    copy: Path, tmp_path: Path, state: Path
) -> None:
    first, second = put_first(copy, b"no network")
    words = [*service_of(CRASHES), "serve", str(copy), "--port", "0", "--state", str(state)]
    environment = os.environ | {TOKEN_VARIABLE: TOKEN}
    done = subprocess.run(words, env=environment, capture_output=True, timeout=300, check=False)
    assert done.returncode == -signal.SIGSEGV
    with served(copy, tmp_path / "log", "--state", str(state), command=service_of(CRASHES)) as service:
        assert ask(service, images())["subnet"] == second
        assert taken_out(service) == [first]
        assert line_of(first, state) in service.lines()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_is_ended_from_outside_while_a_subnet_runs_takes_nothing_out(
    copy: Path, tmp_path: Path, state: Path, number: signal.Signals
) -> None:
    options = ("--state", str(state))
    over = threading.Event()
    with served(copy, tmp_path / "log", *options) as service:

        def keep_asking() -> None:
            with suppress(httpx.TransportError):  # it has ended
                while not over.is_set():
                    service.http.post(INFER, **body(images(MOST_SAMPLES)))

        with beside(*[keep_asking] * 4, over=over):
            assert soon(lambda: service.state()["queue"]["depth"] >= 2)
            service.process.send_signal(number)
            service.process.wait(60)
        assert (state / STACKS_FILE).exists() == (number == signal.SIGKILL)
    with served(copy, tmp_path / "log2", *options) as service:
        assert taken_out(service) == []
        assert service.lines() == []
    assert not (state / CRASHED_FILE).exists()


@pytest.mark.long
def test_a_crash_outside_of_all_subnets_takes_nothing_out_and_is_one_line(
    copy: Path, tmp_path: Path, state: Path
) -> None:
    options, pipe = ("--state", str(state)), os.pipe()

    def reads_the_pipe() -> None:
        os.dup2(pipe[0], 0)

    command = service_of(CRASHES_BESIDE)
    with served(copy, tmp_path / "log", *options, command=command, before=reads_the_pipe) as service:
        os.write(pipe[1], b"x")
        for one in pipe:
            os.close(one)
        assert service.process.wait(60) == -signal.SIGSEGV
    for start, told in enumerate((["the service crashed (Segmentation fault) while no SubNet ran"], [])):
        with served(copy, tmp_path / f"log{start}", *options) as service:
            assert taken_out(service) == []
            assert service.lines() == told


@pytest.mark.long
def test_of_several_subnets_that_ran_none_is_taken_out_before_a_second_crash(plain_bundle: Path, state: Path) -> None:
    bundle = OpenBundle.open(plain_bundle)
    both = {(one.digest, "onnx") for one in bundle.manifest.subnets}
    known = CrashedSubNets(bundle=bundle.digest)
    for crashes in (1, 2):
        words = [sys.executable, "-c", CRASHES_INSIDE, str(plain_bundle), str(state), bundle.digest]
        done = subprocess.run(words, capture_output=True, timeout=300, check=False)
        assert done.returncode == -signal.SIGABRT, done.stderr
        assert Crash.read(state / STACKS_FILE, "0" * 64) is None, "it is of another bundle"
        crash = Crash.read(state / STACKS_FILE, bundle.digest)
        assert crash is not None
        assert (crash.signal, set(crash.running)) == ("Aborted", both)
        known = known.after(crash)
        assert {one.is_out for one in known.subnets} == {crashes == 2}


def test_damaged_notes_of_crashes_are_one_line(copy: Path, tmp_path: Path, state: Path) -> None:
    (state / CRASHED_FILE).write_bytes(b'{"version":1,"bun')
    with served(copy, tmp_path / "log", "--state", str(state)) as service:
        assert taken_out(service) == []
        (line,) = service.lines()
        assert line.startswith(f"{state / CRASHED_FILE}: is no JSON")
        assert line.endswith("which SubNets have crashed is forgotten")
