"""A device of a fleet against a real registry: what it runs, and what it refuses."""

import json
import shutil
from pathlib import Path

import pytest
from sqlalchemy import select, update

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.bundles import BUNDLE_FILE, SIGNATURE_FILE, signature
from adaptive_runtime.cli import main
from adaptive_runtime.fleet import FleetMember, RequestCounter, RequestSums, ServedSums, Telemetry
from tasks.operations.fleet.devices import BundleStore, list_devices
from tasks.operations.fleet.registry import devices, telemetry
from tests.support.fleet.served_registry import ASKED, ServedRegistry

KEY = b"a secret of exporter and device"


def assign(service: ServedRegistry, member: FleetMember, bundle: str | None) -> None:
    with service.registry.writing() as connection:
        connection.execute(update(devices).where(devices.c.id == member.state.device).values(assigned=bundle))


def told(service: ServedRegistry, member: FleetMember) -> float:
    """Requests that the registry knows of."""
    with service.registry.reading() as connection:
        rows = connection.exec_driver_sql("SELECT device, requests FROM telemetry").all()
    return float(sum(requests for device, requests in rows if device == member.state.device))


def by_bundles(service: ServedRegistry, member: FleetMember) -> dict[str, float]:
    """Requests that the registry knows of, by the bundle that answered."""
    with service.registry.reading() as connection:
        rows = connection.execute(
            select(telemetry.c.bundle, telemetry.c.requests).where(telemetry.c.device == member.state.device)
        ).all()
    found: dict[str, float] = {}
    for bundle, requests in rows:
        found[bundle] = found.get(bundle, 0.0) + requests
    return found


def active(service: ServedRegistry, member: FleetMember) -> str | None:
    with service.registry.reading() as connection:
        return connection.execute(select(devices.c.active).where(devices.c.id == member.state.device)).scalar_one()


@pytest.fixture
def member(service: ServedRegistry, tmp_path: Path) -> FleetMember:
    return FleetMember.enrol(tmp_path / "member", service.url, service.token(), ASKED)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.write_bytes(KEY)
    return file


@pytest.fixture
def signed(service: ServedRegistry, copy: Path) -> str:
    """A signed bundle of the registry, which is another one."""
    manifest = json.loads((copy / BUNDLE_FILE).read_text())
    (copy / BUNDLE_FILE).write_text(json.dumps(manifest | {"predicted_error": 0.125}))
    (copy / SIGNATURE_FILE).write_text(signature((copy / BUNDLE_FILE).read_bytes(), KEY))
    return BundleStore(service.log.parent / "files").add(service.registry, copy, "signed")


def test_a_device_goes_over_to_its_bundle_and_back(
    service: ServedRegistry, member: FleetMember, key: Path, signed: str
) -> None:
    assert member.pull().bundle is None
    assert member.bundle is None
    assign(service, member, signed)
    member.pull(key_file=key)
    assert (member.folder / "current").resolve() == (member.folder / "bundles" / signed).resolve()
    assert FleetMember.open(member.folder).bundle == member.folder / "bundles" / signed
    assign(service, member, service.bundle)
    member.pull()
    assert (member.folder / "current").resolve().name == service.bundle
    assign(service, member, None)
    member.pull()
    assert member.bundle is None
    assert not (member.folder / "current").exists()
    assert {(member.folder / name).stat().st_mode & 0o777 for name in ("member.json", "token")} == {0o600}
    assert (member.folder / "token").read_text().strip() == member.state.token


def test_an_unsigned_or_damaged_bundle_is_not_run(
    service: ServedRegistry, member: FleetMember, key: Path, signed: str
) -> None:
    assign(service, member, service.bundle)
    with pytest.raises(AdaptiveError, match="a key was given"):
        member.pull(key_file=key)
    key.write_bytes(b"another secret, not theirs")
    assign(service, member, signed)
    with pytest.raises(AdaptiveError, match="is not the signature of the manifest by this key"):
        member.pull(key_file=key)
    manifest = json.loads((service.log.parent / "files" / signed).read_text())
    digest = next(facts["sha256"] for name, facts in manifest["files"].items() if name.endswith(".onnx"))
    file = service.log.parent / "files" / digest
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"x")
    try:
        with pytest.raises(AdaptiveError, match="came with other bytes; try again"):
            member.pull()
    finally:
        file.write_bytes(content)
    assert member.bundle is None
    assert list((member.folder / "bundles").iterdir()) == []


def test_sums_that_did_not_arrive_are_told_again_and_count_once(
    service: ServedRegistry, member: FleetMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = RequestCounter()
    counter.answered(7.5, 0.9, in_time=True, agreed=True)
    counter.answered(9.0, 1.5, in_time=False)
    served = counter.take()
    sums = served.sums
    assert (sums.requests, sums.in_time, sums.labelled, sums.agreed) == (2, 1, 1, 1)
    assert sums.confidence == pytest.approx(1.9)
    assert counter.take() == ServedSums(bundle=None)
    registry = member._registry

    class LostAnswer:
        def tell(self, telemetry: object) -> None:
            registry.tell(telemetry)  # type: ignore[arg-type]
            raise AdaptiveError("registry", "the answer was lost")

    monkeypatch.setattr(member, "_registry", LostAnswer())
    with pytest.raises(AdaptiveError, match="the answer was lost"):
        member.pull(served)
    FleetMember.open(member.folder).pull()
    assert told(service, member) == 2


def test_sums_of_several_times_without_a_registry_all_count(
    service: ServedRegistry, member: FleetMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, sums = member._registry, RequestSums(requests=3, in_time=2, confidence=1.5)
    by_own, by_bundle = (ServedSums(bundle=bundle, sums=sums) for bundle in (None, service.bundle))

    class Away:
        def tell(self, telemetry: object) -> None:
            raise AdaptiveError("registry", "is not reached")

    monkeypatch.setattr(member, "_registry", Away())
    for served in (by_own, by_bundle, by_own):
        with pytest.raises(AdaptiveError, match="is not reached"):
            member.pull(served)
    monkeypatch.setattr(member, "_registry", registry)
    member.pull(by_bundle)
    assert told(service, member) == 12
    assert by_bundles(service, member) == {"": 6, service.bundle: 6}
    assert active(service, member) == service.bundle


def test_a_kept_bundle_that_is_damaged_is_fetched_again(service: ServedRegistry, member: FleetMember) -> None:
    assign(service, member, service.bundle)
    member.pull()
    file = next((member.folder / "bundles" / service.bundle).glob("*.onnx"))
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"x")
    member._keep(member.state.model_copy(update={"active": None}))
    member.pull()
    assert file.read_bytes() == content


def test_confidences_that_are_no_numbers_count_as_none() -> None:
    counter = RequestCounter()
    counter.answered(1.0, float("nan"), in_time=True)
    counter.answered(float("inf"), 0.5, in_time=False)
    assert (taken := counter.take().sums).requests == 2
    assert taken.confidence == 0.5


def test_what_is_told_is_the_bundle_that_answered_and_not_the_one_that_was_fetched(
    service: ServedRegistry, member: FleetMember
) -> None:
    assign(service, member, service.bundle)
    member.pull()
    assert member.bundle is not None
    member.pull(ServedSums(bundle=None, sums=RequestSums(requests=5)))  # its service has not started anew
    assert by_bundles(service, member) == {"": 5}
    assert active(service, member) is None
    member.pull(ServedSums(bundle=service.bundle, sums=RequestSums(requests=2)))
    member.pull()
    assert by_bundles(service, member) == {"": 5, service.bundle: 2}
    assert active(service, member) == service.bundle


def restored_of(service: ServedRegistry, member: FleetMember) -> int:
    with service.registry.reading() as connection:
        return next(one.restored for one in list_devices(connection) if one.id == member.state.device)


def test_a_device_that_is_restored_from_a_backup_is_noticed_and_goes_on(
    service: ServedRegistry, member: FleetMember, tmp_path: Path
) -> None:
    one = ServedSums(bundle=None, sums=RequestSums(requests=1))
    member.pull(one)
    backup = Path(shutil.copytree(member.folder, tmp_path / "backup"))
    for _ in range(3):
        member.pull(one)
    assert (restored_of(service, member), told(service, member)) == (0, 4)
    copy = FleetMember.open(backup)
    copy.pull(one)
    assert copy.restored
    assert (restored_of(service, member), told(service, member)) == (1, 5)
    copy = FleetMember.open(backup)
    copy.pull(one)
    assert not copy.restored
    assert (restored_of(service, member), told(service, member)) == (1, 6)
    member.pull(one)
    assert member.restored, "two devices with one folder go on to be noticed"
    assert told(service, member) == 7


def test_sums_that_a_backup_has_not_told_yet_count_once(
    service: ServedRegistry, member: FleetMember, tmp_path: Path
) -> None:
    one = ServedSums(bundle=None, sums=RequestSums(requests=1))
    member.pull(one)
    state = member.state
    member._keep(state.model_copy(update={"untold": Telemetry(sequence=state.sequence, bundle=None, sums=one.sums)}))
    backup = Path(shutil.copytree(member.folder, tmp_path / "backup"))
    member.pull(one)
    FleetMember.open(backup).pull(one)
    assert told(service, member) == 3


def test_the_file_of_a_device_that_an_earlier_version_wrote_is_read(member: FleetMember) -> None:
    active, sums = "ab" * 32, RequestSums(requests=3).model_dump()
    earlier = json.loads(member.state.to_json()) | {"version": 1, "active": active, "sequence": 4, "waiting": sums}
    del earlier["served"]
    (member.folder / "member.json").write_text(json.dumps(earlier))
    state = FleetMember.open(member.folder).state
    assert state.waiting == (ServedSums(bundle=active, sums=RequestSums(requests=3)),)
    assert (state.sequence, state.active, state.token) == (4, active, member.state.token)


@pytest.mark.long
def test_the_commands_of_a_device_enrol_and_pull(
    service: ServedRegistry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text(service.token())
    (tmp_path / "token").chmod(0o600)
    (tmp_path / "sums.json").write_text(
        json.dumps({"bundle": None, "sums": {"requests": 3, "log_latency": 4.5, "in_time": 3, "confidence": 2.5}})
    )
    folder = str(tmp_path / "member")
    enrol = [
        "fleet",
        "enrol",
        service.url,
        "--folder",
        folder,
        "--kind",
        "camera",
        "--token-file",
        str(tmp_path / "token"),
    ]
    assert main(enrol) == 0
    assert main(["fleet", "pull", "--folder", folder, "--sums", str(tmp_path / "sums.json")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "own"
    assert told(service, FleetMember.open(Path(folder))) == 3
    (tmp_path / "old.json").write_text(json.dumps({"requests": 3}))
    for words, line in (
        (["fleet", "pull", "--folder", folder, "--sums", str(tmp_path / "old.json")], "write bundle: the sha256 of"),
        (enrol, "is of a device that has enrolled"),
        ([*enrol[:4], str(tmp_path / "other"), *enrol[5:]], "answered 401: missing or wrong token"),
        (["fleet", "pull", "--folder", str(tmp_path)], "cannot be read (No such file or directory); enrol:"),
        (["fleet", "enrol", "ftp://x", *enrol[3:4], str(tmp_path / "other"), *enrol[5:]], "is no address"),
    ):
        assert main(words) == 2
        told_line = capsys.readouterr().err
        assert line in told_line
        assert told_line.count("\n") == 1
