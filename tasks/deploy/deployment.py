"""One deployment: a bundle and the run time are installed on a device, checked there, then served."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from adaptive_runtime.base.files import sha256_of
from adaptive_runtime.bundle.bundles import (
    BUNDLE_FILE,
    CHAIN_FORMATS,
    SIGNATURE_FILE,
    BundleFormat,
    BundleManifest,
    OpenBundle,
)
from adaptive_runtime.bundle.chains import ChainFormat
from profiling_agents.client.ssh import SshTarget
from tasks.base.artifacts import digest_of
from tasks.base.errors import UserError
from tasks.deploy.channel import DeviceChannel, open_channel
from tasks.deploy.settings import Settings
from tasks.deploy.wheel import build_wheel

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


def run(settings: Settings, device: str, bundle: Path, target: SshTarget | None, say: Say = print) -> Deployed:
    """Copy, install, check, switch to the release, start. target: None: this machine.

    UserError: the device is not reachable or refuses a step, its answers differ, or the service does not become ready. In the
    last two cases the former release is restored. If the call is killed in the middle, the same call resumes.
    """
    opened = _verified(bundle)
    extras = required_extras(opened.manifest, settings.format)
    names = [*opened.manifest.files, BUNDLE_FILE, *([SIGNATURE_FILE] if (bundle / SIGNATURE_FILE).exists() else [])]
    with tempfile.TemporaryDirectory() as folder:
        wheel = settings.wheel or build_wheel(Path(folder))
        files = {name: bundle / name for name in names}
        packages = {file.name: file for file in (wheel, *_wheels(settings.wheels))}
        with open_channel(f"device '{device}'", settings.python, target) as channel:
            return _deploy(settings, device, channel, wheel.name, packages, files, extras, say)


def required_extras(manifest: BundleManifest, wanted: BundleFormat | None) -> tuple[str, ...]:
    """The wheel's extras for one format of a bundle; None: for all known formats. UserError: the bundle has no such files."""
    forms = manifest.known_formats if wanted is None else (wanted,)
    if missing := [form for form in forms if form not in manifest.runs]:
        allowed = ", ".join(manifest.runs)
        raise UserError("deploy.format", f"the bundle has no files of {missing[0]}", allowed=allowed)
    return tuple(dict.fromkeys(EXTRAS[CHAIN_FORMATS[form]] for form in forms))


def _deploy(
    settings: Settings,
    device: str,
    channel: DeviceChannel,
    wheel: str,
    packages: Mapping[str, Path],
    bundle: Mapping[str, Path],
    extras: Sequence[str],
    say: Say,
) -> Deployed:
    """The steps on the device, in order."""
    there = channel.ask("open", folder=settings.folder)
    serve, check, kind = settings.serve_words(there["root"]), settings.check_words(), settings.install
    package_facts, bundle_facts, extra = _facts(packages), _facts(bundle), ",".join(extras)
    software = digest_of(package_facts, extra, kind, there["python"])[:DIGITS]
    release = digest_of(software, bundle_facts, serve)[:DIGITS]
    wanted = channel.ask("missing", software=software, packages=package_facts, release=release, bundle=bundle_facts)
    files = {f"packages/{name}": file for name, file in packages.items()}
    files |= {f"releases/{release}/bundle/{name}": file for name, file in bundle.items()}
    sizes = {place: files[place].stat().st_size for place in wanted["places"]}
    installed = sum(INSTALLED_MB[one] for one in extras) * MB if wanted["installs"] and kind == "venv" else 0
    _refuse_without_room(device, there["root"], sum(sizes.values()) + installed, wanted["free_bytes"])
    say(f"{len(sizes)} of {len(files)} files are sent, {sum(sizes.values()) / MB:.1f} MB")
    for place in sizes:
        channel.put(place, files[place], *_fact(files[place]))
    if wanted["installs"]:
        say(f"the run time is installed, with {' and '.join(extras)}")
    channel.ask("install", software=software, wheel=wheel, extra=extra, kind=kind, offline=settings.wheels is not None)
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


def _verified(bundle: Path) -> OpenBundle:
    """The bundle, with all files checked against its manifest.

    AdaptiveError: a file differs. UserError: the bundle has no calibration sample.
    """
    opened = OpenBundle.open(bundle)
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


def _facts(files: Mapping[str, Path]) -> dict[str, FileFact]:
    """File name -> sha256 and size. UserError: a file cannot be read."""
    return {name: _fact(file) for name, file in files.items()}


def _fact(file: Path) -> FileFact:
    try:
        return sha256_of(file), file.stat().st_size
    except OSError as error:
        raise UserError(f"'{file}'", f"cannot be read ({error.strerror})") from error


def _refuse_without_room(device: str, root: str, needed: int, free: int) -> None:
    if needed > free:
        got = f"{free / MB:.0f} MB are free in '{root}'"
        next_step = "make room, or deploy.folder=ANOTHER"
        raise UserError(f"device '{device}'", got, allowed=f"{needed / MB:.0f} MB or more", next_step=next_step)
