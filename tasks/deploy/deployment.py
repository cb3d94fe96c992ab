"""One deployment: a bundle and the run time are installed on a device, checked there, then served.

The channel to a device is one process, on this machine or over ssh, that executes the steps one after the other. The
wheel of the run time for devices is built from this repository.
"""

import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypedDict

import adaptive_runtime
from adaptive_runtime.base.files import sha256_of
from adaptive_runtime.bundle import bundles
from adaptive_runtime.bundle.chains import ChainFormat
from profiling_agents.client.ssh import SshTarget, explained
from tasks.base.artifacts import digest_of
from tasks.base.errors import UserError
from tasks.deploy.device_side import service, steps
from tasks.deploy.settings import Settings

SENT = (service, steps)
"""The modules of the device's half, each after the modules that it imports."""
BOOTSTRAP = """
import sys
if sys.version_info < (3, 11):
    sys.exit("Python %d.%d is too old; install Python 3.11 or newer there" % sys.version_info[:2])
import json, types
modules = json.loads(sys.stdin.buffer.read(int(sys.stdin.buffer.read(10))))
for name, source in modules:
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
sys.exit(module.main())
"""
"""The program that loads the sent modules; old Python versions can parse it, too."""
CHUNK = 1 << 20
STOP_S = 10.0
AGAIN = "the same command goes on"


class DeviceChannel:
    """The process on the device. `ask` and `put` raise UserError if the device refuses the step or is not reachable."""

    def __init__(
        self, process: subprocess.Popen[bytes], errors: IO[bytes], where: str, target: SshTarget | None
    ) -> None:
        self._process, self._errors, self._where, self._target = process, errors, where, target

    def ask(self, step: str, **arguments: Any) -> Any:
        """The answer to a step (`tasks.deploy.device_side.steps`)."""
        self._send(_message([step, arguments]))
        return self._answer()

    def put(self, place: str, file: Path, sha256: str, size: int) -> None:
        """Send a file to a place in the deployment's folder."""
        self._send(_message(["put", {"place": place, "digest": sha256, "size": size}]))
        with file.open("rb") as stream:
            while chunk := stream.read(CHUNK):
                self._send(chunk)
        self._answer()

    def _send(self, content: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(content)
            self._process.stdin.flush()
        except BrokenPipeError:
            self._answer()  # the process has ended; its last answer gives the reason
            raise self._lost() from None

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        try:
            answer = json.loads(line)
        except ValueError:
            raise self._lost() from None
        if "refused" in answer:
            raise UserError(self._where, answer["refused"])
        return answer["found"]

    def _lost(self) -> UserError:
        """The error for an ended process, with the last line of its output."""
        _stop(self._process)
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        line = said[-1] if said else f"the connection was lost (code {self._process.returncode}); {AGAIN}"
        return UserError(self._where, explained(line, self._target) if self._target else line)


@contextmanager
def open_channel(where: str, python: str | None, target: SshTarget | None) -> Iterator[DeviceChannel]:
    """The channel to a device, until the block ends. target: None: this machine. python: None: the target's interpreter."""
    if target is None:
        command = [python or sys.executable, "-c", BOOTSTRAP]
    else:
        if shutil.which("ssh") is None:
            raise UserError(where, "no 'ssh' on this machine", next_step="install the OpenSSH client")
        remote = shlex.join([python or target.python, "-c", BOOTSTRAP])
        command = [*target.arguments(Path("none")), "--", target.destination, remote]
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        except OSError as error:
            raise UserError(where, f"no Python at '{command[0]}'", next_step="deploy.python=PATH") from error
        channel = DeviceChannel(process, errors, where, target)
        try:
            channel._send(
                _message([(module.__name__, Path(str(module.__file__)).read_text("utf-8")) for module in SENT])
            )
            yield channel
        finally:
            _stop(process)


def _message(value: Any) -> bytes:
    content = json.dumps(value).encode()
    return f"{len(content):0{steps.LENGTH_DIGITS}d}".encode() + content


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Close the process's stdin, so that it ends by itself; terminate it if it does not."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()
    process.stdout.close()


PROJECT = Path(adaptive_runtime.__path__[0]).parent / "device"
GIVEN = "or give one: deploy.wheel=FILE.whl (make device-wheel)"


def build_wheel(folder: Path, project: Path = PROJECT) -> Path:
    """Build `autotailor_runtime-VERSION-py3-none-any.whl` into `folder`; the same sources give the same bytes.

    project: folder of the wheel's pyproject.toml. UserError: the folder or hatchling is missing, or hatchling fails.
    """
    where = "wheel of the run time"
    if not (project / "pyproject.toml").is_file():
        raise UserError(where, f"'{project}' is not there", next_step=f"run in the repository, {GIVEN}")
    command = [sys.executable, "-P", "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder.resolve())]
    done = subprocess.run(
        command,
        cwd=project,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    said = done.stdout.strip().splitlines() or ["no reason"]
    if done.returncode:
        hint = "pip install hatchling" if "No module named hatchling" in said[-1] else "mend the sources"
        raise UserError(where, f"cannot be built ({said[-1]})", next_step=f"{hint}, {GIVEN}")
    return folder / Path(said[-1]).name


EXTRAS: Mapping[ChainFormat, str] = {"onnx": "onnxruntime", "ncnn": "ncnn"}
"""Format -> the wheel's extra that installs the format's runtime."""
INSTALLED_MB: Mapping[str, int] = {"onnxruntime": 270, "ncnn": 140}
"""Extra -> largest size [MB] of an environment with it, pip included."""
DIGITS = 16
MB = 10**6

Say = Callable[[str], None]
"""Takes a progress message of one line."""
FileFact = tuple[str, int]
"""sha256 and size of a file."""


class Deployed(TypedDict):
    """The result of a deployment.

    former: release that `current` linked to before. removed: releases that were removed. checked: the device's messages about
    its answers. address: the service's address; by: "systemd" or "process". Both are None if nothing was started.
    """

    device: str
    folder: str
    release: str
    former: str | None
    removed: list[str]
    files_sent: int
    bytes_sent: int
    checked: list[str]
    address: str | None
    by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parcel:
    """The files for a device by name. wheel: name of the run time's wheel. extras: of this wheel, for the bundle's formats.

    packages: the wheel, and others if the device installs without a network. bundle: with its manifest and signature.
    """

    wheel: str
    extras: tuple[str, ...]
    packages: Mapping[str, Path]
    bundle: Mapping[str, Path]

    def places(self, release: str) -> dict[str, Path]:
        """Place in the deployment's folder -> file."""
        found = {f"packages/{name}": file for name, file in self.packages.items()}
        return found | {f"releases/{release}/bundle/{name}": file for name, file in self.bundle.items()}


def run(settings: Settings, device: str, bundle: Path, target: SshTarget | None, say: Say = print) -> Deployed:
    """Copy, install, check, switch to the release, start. target: None: this machine.

    UserError: the device is not reachable or refuses a step, its answers differ, or the service does not become ready. In the
    last two cases the former release is restored. If the call is killed in the middle, the same call resumes.
    """
    opened = _verified(bundle)
    extras = required_extras(opened.manifest, settings.format)
    names = [
        *opened.manifest.files,
        bundles.BUNDLE_FILE,
        *([bundles.SIGNATURE_FILE] if (bundle / bundles.SIGNATURE_FILE).exists() else []),
    ]
    with tempfile.TemporaryDirectory() as folder:
        wheel = settings.wheel or build_wheel(Path(folder))
        parcel = _Parcel(
            wheel=wheel.name,
            extras=extras,
            packages={file.name: file for file in (wheel, *_wheels(settings.wheels))},
            bundle={name: bundle / name for name in names},
        )
        with open_channel(f"device '{device}'", settings.python, target) as channel:
            return _deploy(settings, device, channel, parcel, say)


def required_extras(manifest: bundles.BundleManifest, wanted: bundles.BundleFormat | None) -> tuple[str, ...]:
    """The wheel's extras for one format of a bundle; None: for all known formats. UserError: the bundle has no such files."""
    forms = manifest.known_formats if wanted is None else (wanted,)
    if missing := [form for form in forms if form not in manifest.runs]:
        allowed = ", ".join(manifest.runs)
        raise UserError("deploy.format", f"the bundle has no files of {missing[0]}", allowed=allowed)
    return tuple(dict.fromkeys(EXTRAS[bundles.CHAIN_FORMATS[form]] for form in forms))


def _deploy(settings: Settings, device: str, channel: DeviceChannel, parcel: _Parcel, say: Say) -> Deployed:
    """The steps on the device, in order."""
    there = channel.ask("open", folder=settings.folder)
    serve, check, kind = settings.serve_words(there["root"]), settings.check_words(), settings.install
    package_facts, bundle_facts = (
        {name: _fact(file) for name, file in each.items()} for each in (parcel.packages, parcel.bundle)
    )
    extra = ",".join(parcel.extras)
    software = digest_of(package_facts, extra, kind, there["python"])[:DIGITS]
    release = digest_of(software, bundle_facts, serve)[:DIGITS]
    wanted = channel.ask("missing", software=software, packages=package_facts, release=release, bundle=bundle_facts)
    files = parcel.places(release)
    sizes = {place: files[place].stat().st_size for place in wanted["places"]}
    installed = sum(INSTALLED_MB[one] for one in parcel.extras) * MB if wanted["installs"] and kind == "venv" else 0
    _refuse_without_room(device, there["root"], sum(sizes.values()) + installed, wanted["free_bytes"])
    say(f"{len(sizes)} of {len(files)} files are sent, {sum(sizes.values()) / MB:.1f} MB")
    for place in sizes:
        sha256, size = _fact(files[place])
        channel.put(place, files[place], sha256, size)
    if wanted["installs"]:
        say(f"the run time is installed, with {' and '.join(parcel.extras)}")
    offline = settings.wheels is not None
    channel.ask("install", software=software, wheel=parcel.wheel, extra=extra, kind=kind, offline=offline)
    channel.ask("release", release=release, software=software, kind=kind, serve=serve, check=check)
    checked = channel.ask("check", release=release)
    say(f"{len(checked)} answers are as expected")
    found = channel.ask("activate", release=release, start=settings.start, ready_s=settings.ready_s)
    removed = channel.ask("clean", keep=settings.keep)
    return Deployed(
        device=device,
        folder=there["root"],
        release=release,
        former=found["former"],
        removed=removed,
        files_sent=len(sizes),
        bytes_sent=sum(sizes.values()),
        checked=checked,
        address=found["address"],
        by=found["by"],
    )


def _verified(bundle: Path) -> bundles.OpenBundle:
    """The bundle, with all files checked against its manifest.

    AdaptiveError: a file differs. UserError: the bundle has no calibration sample.
    """
    opened = bundles.OpenBundle.open(bundle)
    opened.verify_all()
    if opened.manifest.calibration is None:
        got = "has no calibration sample, by which a device is checked"
        raise UserError(str(bundle), got, next_step="export the bundle again")
    return opened


def _wheels(folder: Path | None) -> list[Path]:
    """The wheels of a folder. UserError: it has none."""
    if folder is None:
        return []
    found = sorted(folder.glob("*.whl"))
    if not found:
        raise UserError("deploy.wheels", f"'{folder}' has no wheels", next_step="pip download -d FOLDER 'WHEEL[EXTRA]'")
    return found


def _fact(file: Path) -> FileFact:
    """sha256 and size. UserError: the file cannot be read."""
    try:
        return sha256_of(file), file.stat().st_size
    except OSError as error:
        raise UserError(f"'{file}'", f"cannot be read ({error.strerror})") from error


def _refuse_without_room(device: str, root: str, needed: int, free: int) -> None:
    if needed > free:
        got = f"{free / MB:.0f} MB are free in '{root}'"
        next_step = "make room, or deploy.folder=ANOTHER"
        raise UserError(f"device '{device}'", got, allowed=f"{needed / MB:.0f} MB or more", next_step=next_step)
