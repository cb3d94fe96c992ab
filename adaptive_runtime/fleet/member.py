"""A device of a fleet, and its folder.

FOLDER/member.json          the registry's address, the device's token, what is not told yet; readable by its user alone
FOLDER/bundles/DIGEST/      bundles by the sha256 of their manifests
FOLDER/current              link to the bundle that should serve; none: the device's own
"""

import os
import shutil
from pathlib import Path
from typing import ClassVar, Self

from adaptive_runtime.bundles import BUNDLE_FILE, SIGNATURE_FILE, BundleManifest, OpenBundle, read_key
from adaptive_runtime.bundles.signatures import verify
from adaptive_runtime.errors import AdaptiveError
from adaptive_runtime.files import replace_file
from adaptive_runtime.fleet.messages import AssignedBundle, DeviceToken, EnrolAsked, RequestSums, Telemetry
from adaptive_runtime.fleet.registry import RegistryClient
from adaptive_runtime.message_files import FileMessage
from profiling_agents.messages import Digest

MEMBER_FILE = "member.json"
MOST_MANIFEST_BYTES = 64 << 20
VERSION = 1


class MemberState(FileMessage):
    """What a device knows of its fleet. untold: telemetry that may not have arrived; it is told again first. waiting: sums of
    times at which even that could not be told.
    """

    WHERE: ClassVar[str] = MEMBER_FILE
    NEXT_STEP: ClassVar[str] = "enrol: autotailor-runtime fleet enrol"
    READ_VERSION: ClassVar[int | None] = VERSION
    CONTENT: ClassVar[str] = "a device of a fleet"

    version: int = VERSION
    url: str
    device: str
    token: DeviceToken
    ca_file: str | None = None
    sequence: int = 0
    active: Digest | None = None
    untold: Telemetry | None = None
    waiting: RequestSums = RequestSums()


class FleetMember:
    """A device that has enrolled. One process at a time."""

    def __init__(self, folder: Path, state: MemberState) -> None:
        self.folder, self.state = folder, state
        ca_file = None if state.ca_file is None else Path(state.ca_file)
        self._registry = RegistryClient(state.url, state.token, ca_file)

    @classmethod
    def enrol(cls, folder: Path, url: str, token: str, asked: EnrolAsked, ca_file: Path | None = None) -> Self:
        """Make a folder by a token that counts once. AdaptiveError: it has one already, or the registry refuses."""
        if (folder / MEMBER_FILE).exists():
            raise AdaptiveError(str(folder), "is of a device that has enrolled", next_step="name another folder")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            found = RegistryClient(url, token, ca_file).enrol(asked)
            certificate = None if ca_file is None else str(ca_file.resolve())
            state = MemberState(url=url, device=found.device, token=found.token, ca_file=certificate)
            member = cls(folder, state)
            member._keep(state)
        except OSError as error:
            raise AdaptiveError(str(folder), f"cannot be written ({error.strerror})") from error
        return member

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The device of a folder. AdaptiveError: it has not enrolled."""
        return cls(folder, MemberState.from_file(folder / MEMBER_FILE))

    @property
    def bundle(self) -> Path | None:
        """The bundle that should serve; None: the device's own."""
        return None if self.state.active is None else self.folder / "bundles" / self.state.active

    def pull(self, sums: RequestSums, key_file: Path | None = None) -> AssignedBundle:
        """Tell sums, and go over to the bundle that is assigned. key_file: with which it must be signed.

        AdaptiveError: the registry is not reached, or the bundle is damaged or not signed: the device stays with what it has.
        Sums that may not have arrived are told again next time, and count once.
        """
        waiting = self.state.waiting.plus(sums)
        self._keep(self.state.model_copy(update={"waiting": waiting}))
        if self.state.untold is not None:
            self._tell(self.state.untold)
        told = Telemetry(sequence=self.state.sequence + 1, bundle=self.state.active, sums=waiting)
        kept = {"sequence": told.sequence, "untold": told, "waiting": RequestSums()}
        self._keep(self.state.model_copy(update=kept))
        assigned = self._tell(told)
        if assigned.bundle != self.state.active:
            self._go_over(assigned, key_file)
        return assigned

    def _tell(self, told: Telemetry) -> AssignedBundle:
        assigned = self._registry.tell(told)
        self._keep(self.state.model_copy(update={"untold": None}))
        return assigned

    def _go_over(self, assigned: AssignedBundle, key_file: Path | None) -> None:
        before, link = self.state.active, self.folder / "current"
        try:
            if assigned.bundle is None:
                link.unlink(missing_ok=True)
            else:
                self._fetch(assigned.bundle, assigned.signature, key_file)
                new = link.with_name(".current")
                new.unlink(missing_ok=True)
                new.symlink_to(Path("bundles") / assigned.bundle)
                new.replace(link)
            self._keep(self.state.model_copy(update={"active": assigned.bundle}))
            self._remove_all_but({assigned.bundle, before})
        except OSError as error:
            raise AdaptiveError(str(self.folder), f"cannot be written ({error.strerror})") from error

    def _fetch(self, digest: str, signature: str | None, key_file: Path | None) -> None:
        """The bundle's folder, whole and checked, or not at all."""
        target = self.folder / "bundles" / digest
        if target.exists() and _is_whole(target, key_file):
            return
        partial = target.with_name(f"{digest}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            self._registry.fetch(digest, partial / BUNDLE_FILE, MOST_MANIFEST_BYTES)
            if signature is not None:
                (partial / SIGNATURE_FILE).write_text(f"{signature}\n", encoding="utf-8")
            if key_file is not None:
                _check_signature(partial, key_file)
            for name, facts in BundleManifest.from_file(partial / BUNDLE_FILE).files.items():
                self._registry.fetch(facts.sha256, partial / name, facts.bytes)
            opened = OpenBundle.open(partial, key_file)
            opened.verify_all()
            if opened.digest != digest:
                raise AdaptiveError(f"bundle {digest}", f"it names a file '{BUNDLE_FILE}' of its own")
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _remove_all_but(self, kept: set[str | None]) -> None:
        for folder in (self.folder / "bundles").glob("*"):
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _keep(self, state: MemberState) -> None:
        replace_file(self.folder / MEMBER_FILE, state.to_json())
        os.chmod(self.folder / MEMBER_FILE, 0o600)
        self.state = state


def _is_whole(folder: Path, key_file: Path | None) -> bool:
    """Whether a bundle that was fetched before can serve; else it is fetched again."""
    try:
        OpenBundle.open(folder, key_file).verify_all()
    except AdaptiveError:
        return False
    return True


def _check_signature(folder: Path, key_file: Path) -> None:
    """Before a name of the manifest is used. AdaptiveError."""
    verify((folder / BUNDLE_FILE).read_bytes(), folder / SIGNATURE_FILE, read_key(key_file))
