"""A device of a fleet against a real registry: what it runs, and what it refuses."""

import json
from pathlib import Path

import pytest
from sqlalchemy import update

from adaptive_runtime.bundles import BUNDLE_FILE, SIGNATURE_FILE, signature
from adaptive_runtime.cli import main
from adaptive_runtime.errors import AdaptiveError
from adaptive_runtime.fleet import FleetMember, RequestCounter, RequestSums
from tasks.fleet.registry import BundleStore
from tasks.fleet.registry.tables import devices
from tests.fleet.served_registry import ASKED, ServedRegistry

KEY = b"a secret of exporter and device"


def assign(service: ServedRegistry, member: FleetMember, bundle: str | None) -> None:
    with service.registry.writing() as connection:
        connection.execute(update(devices).where(devices.c.id == member.state.device).values(assigned=bundle))


def told(service: ServedRegistry, member: FleetMember) -> float:
    """Requests that the registry knows of."""
    with service.registry.reading() as connection:
        rows = connection.exec_driver_sql("SELECT device, requests FROM telemetry").all()
    return float(sum(requests for device, requests in rows if device == member.state.device))


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
    with service.registry.writing() as connection:
        return BundleStore(service.log.parent / "files").add(connection, copy, "signed")


def test_a_device_goes_over_to_its_bundle_and_back(
    service: ServedRegistry, member: FleetMember, key: Path, signed: str
) -> None:
    assert member.pull(RequestSums()).bundle is None
    assert member.bundle is None
    assign(service, member, signed)
    member.pull(RequestSums(), key)
    assert (member.folder / "current").resolve() == (member.folder / "bundles" / signed).resolve()
    assert FleetMember.open(member.folder).bundle == member.folder / "bundles" / signed
    assign(service, member, service.bundle)
    member.pull(RequestSums())
    assert (member.folder / "current").resolve().name == service.bundle
    assign(service, member, None)
    member.pull(RequestSums())
    assert member.bundle is None
    assert not (member.folder / "current").exists()
    assert (member.folder / "member.json").stat().st_mode & 0o777 == 0o600


def test_an_unsigned_or_damaged_bundle_is_not_run(
    service: ServedRegistry, member: FleetMember, key: Path, signed: str
) -> None:
    assign(service, member, service.bundle)
    with pytest.raises(AdaptiveError, match="a key was given"):
        member.pull(RequestSums(), key)
    key.write_bytes(b"another secret, not theirs")
    assign(service, member, signed)
    with pytest.raises(AdaptiveError, match="is not the signature of the manifest by this key"):
        member.pull(RequestSums(), key)
    manifest = json.loads((service.log.parent / "files" / signed).read_text())
    digest = next(facts["sha256"] for name, facts in manifest["files"].items() if name.endswith(".onnx"))
    file = service.log.parent / "files" / digest
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"x")
    try:
        with pytest.raises(AdaptiveError, match="came with other bytes; try again"):
            member.pull(RequestSums())
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
    sums = counter.take()
    assert (sums.requests, sums.in_time, sums.labelled, sums.agreed) == (2, 1, 1, 1)
    assert sums.confidence == pytest.approx(1.9)
    assert counter.take() == RequestSums()
    registry = member._registry

    class LostAnswer:
        def tell(self, telemetry: object) -> None:
            registry.tell(telemetry)  # type: ignore[arg-type]
            raise AdaptiveError("registry", "the answer was lost")

    monkeypatch.setattr(member, "_registry", LostAnswer())
    with pytest.raises(AdaptiveError, match="the answer was lost"):
        member.pull(sums)
    FleetMember.open(member.folder).pull(RequestSums())
    assert told(service, member) == 2


def test_sums_of_several_times_without_a_registry_all_count(
    service: ServedRegistry, member: FleetMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, sums = member._registry, RequestSums(requests=3, in_time=2, confidence=1.5)

    class Away:
        def tell(self, telemetry: object) -> None:
            raise AdaptiveError("registry", "is not reached")

    monkeypatch.setattr(member, "_registry", Away())
    for _ in range(3):
        with pytest.raises(AdaptiveError, match="is not reached"):
            member.pull(sums)
    monkeypatch.setattr(member, "_registry", registry)
    member.pull(sums)
    assert told(service, member) == 12


def test_a_kept_bundle_that_is_damaged_is_fetched_again(service: ServedRegistry, member: FleetMember) -> None:
    assign(service, member, service.bundle)
    member.pull(RequestSums())
    file = next((member.folder / "bundles" / service.bundle).glob("*.onnx"))
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"x")
    member._keep(member.state.model_copy(update={"active": None}))
    member.pull(RequestSums())
    assert file.read_bytes() == content


def test_confidences_that_are_no_numbers_count_as_none() -> None:
    counter = RequestCounter()
    counter.answered(1.0, float("nan"), in_time=True)
    counter.answered(float("inf"), 0.5, in_time=False)
    assert (taken := counter.take()).requests == 2
    assert taken.confidence == 0.5


def test_the_commands_of_a_device_enrol_and_pull(
    service: ServedRegistry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text(service.token())
    (tmp_path / "token").chmod(0o600)
    (tmp_path / "sums.json").write_text(
        json.dumps({"requests": 3, "log_latency": 4.5, "in_time": 3, "confidence": 2.5})
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
    for words, line in (
        (enrol, "is of a device that has enrolled"),
        ([*enrol[:4], str(tmp_path / "other"), *enrol[5:]], "answered 401: missing or wrong token"),
        (["fleet", "pull", "--folder", str(tmp_path)], "cannot be read (No such file or directory); enrol:"),
        (["fleet", "enrol", "ftp://x", *enrol[3:4], str(tmp_path / "other"), *enrol[5:]], "is no address"),
    ):
        assert main(words) == 2
        told_line = capsys.readouterr().err
        assert line in told_line
        assert told_line.count("\n") == 1
