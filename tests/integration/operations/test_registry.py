"""The registry: tokens that count once, telemetry in windows, roll-outs that telemetry advances."""

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from adaptive_runtime.bundle.bundles import SIGNATURE_FILE
from adaptive_runtime.fleet import RequestSums, Telemetry
from tasks.base.errors import UserError
from tasks.operations.fleet.decision import draw_stage
from tasks.operations.fleet.devices import (
    BundleStore,
    EnrolmentRefused,
    bundle_named,
    can_enrol,
    enrol,
    find_device,
    list_devices,
    new_enrolment,
    remove_device,
    signature_of,
)
from tasks.operations.fleet.registry import Registry
from tasks.operations.fleet.rollouts import begin, go_on, list_rollouts, record, stop
from tasks.operations.fleet.settings import LossLimits, RolloutSettings
from tests.support.fleet.told_fleet import ASKED, SETTINGS, WINDOW_S, ToldFleet


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    found = Registry.open(f"sqlite:///{tmp_path}/fleet.db", WINDOW_S)
    yield found
    found.close()


@pytest.fixture
def fleet(registry: Registry, plain_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ToldFleet:
    """Drawn alike each time: a test of probabilities fails with one, else."""
    rng = np.random.default_rng(1)
    monkeypatch.setattr("secrets.token_hex", lambda count: rng.bytes(count).hex())
    monkeypatch.setattr("secrets.randbits", lambda bits: int(rng.integers(2**bits)))
    return ToldFleet(registry, BundleStore(tmp_path / "files").add(registry, plain_bundle, "new"))


def test_a_token_enrols_one_device_and_is_kept_as_a_hash(registry: Registry, tmp_path: Path) -> None:
    with registry.writing() as connection:
        (made,) = new_enrolment(connection, "me", valid_s=60)
        found = enrol(connection, made.token, ASKED)
        with pytest.raises(EnrolmentRefused):
            enrol(connection, made.token, ASKED)
        assert find_device(connection, found.token) == found.device
        assert find_device(connection, made.token) is None
    content = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert found.device.encode() in content
    assert made.token.encode() not in content
    assert found.token.encode() not in content


def test_a_token_that_is_late_or_of_a_removed_device_counts_nothing(registry: Registry) -> None:
    with registry.writing() as connection:
        (late, good) = (new_enrolment(connection, "me", valid_s=valid_s)[0] for valid_s in (-1, 60))
        with pytest.raises(EnrolmentRefused):
            enrol(connection, late.token, ASKED)
        device = enrol(connection, good.token, ASKED)
        remove_device(connection, device.device)
        assert find_device(connection, device.token) is None
        with pytest.raises(UserError, match="is no device"):
            remove_device(connection, device.device)


def test_telemetry_that_comes_twice_counts_once(registry: Registry) -> None:
    sums = RequestSums(requests=10, log_latency=20, in_time=9, confidence=8)
    with registry.writing() as connection:
        device = enrol(connection, new_enrolment(connection, "me", valid_s=60)[0].token, ASKED).device
        told = [Telemetry(sequence=sequence, bundle=None, sums=sums) for sequence in (1, 1, 2)]
        assert [record(connection, device, one, 150.0, WINDOW_S) for one in told] == [None, None, None]
        found = connection.exec_driver_sql("SELECT window, requests, log_latency FROM telemetry").all()
        assert found == [(1, 20.0, 40.0)]
        assert record(connection, device, told[0], 150.0, WINDOW_S) == 2
        other = told[2].model_copy(update={"sums": RequestSums(requests=3)})
        assert record(connection, device, other, 160.0, WINDOW_S) == 2
        (row,) = list_devices(connection)
        assert connection.exec_driver_sql("SELECT window, requests, log_latency FROM telemetry").all() == found
    assert (row.restored, row.restored_s) == (2, 160.0)


@pytest.mark.long
def test_a_bundle_that_changes_nothing_reaches_all_devices(fleet: ToldFleet) -> None:
    fleet.begin()
    assert len(fleet.assigned()) == 12
    decided = fleet.tell(4)
    assert decided[-1] == "go on"
    assert set(decided[:-1]) <= {"wait"}
    assert len(fleet.assigned()) == 60
    with fleet.registry.writing() as connection:
        (row,) = list_rollouts(connection)
    assert (row.state, row.reached, row.reason) == ("complete", 60, "all devices get the bundle")
    with fleet.registry.writing() as connection:
        stop(connection, row.id)
    assert not fleet.assigned(), "a person may halt it later, too"


def test_a_slower_bundle_is_halted_and_its_devices_go_back(fleet: ToldFleet) -> None:
    rollout = fleet.begin()
    assert fleet.tell(5, slower=0.3)[-1] == "halt"
    assert not fleet.assigned()
    with fleet.registry.writing() as connection:
        (row,) = list_rollouts(connection)
        assert (row.state, row.reached) == ("halted", 12)
        assert row.reason.startswith("latency is worse than tolerated (0.05), seen in window ")
        with pytest.raises(UserError, match="is halted already"):
            stop(connection, rollout)


@pytest.mark.long
def test_where_nothing_is_sure_a_person_goes_on(fleet: ToldFleet) -> None:
    narrow = SETTINGS.model_copy(update={"limits": {"latency": LossLimits(tolerated=0.1999, harmful=0.2)}})
    rollout = fleet.begin(narrow)
    with fleet.registry.writing() as connection, pytest.raises(UserError, match="is running; allowed: one that asks"):
        go_on(connection, rollout, fleet.now_s, WINDOW_S)
    assert fleet.tell(8, slower=float(np.log(1.19995)))[-1] == "ask"
    assert len(fleet.assigned()) == 12
    with fleet.registry.writing() as connection:
        go_on(connection, rollout, fleet.now_s, WINDOW_S)
    assert len(fleet.assigned()) == 60


def test_each_stage_of_a_small_fleet_has_devices_to_compare() -> None:
    settings, rng = RolloutSettings(), np.random.default_rng(0)
    for count in (30, 110, 150):
        taken_F = np.zeros(count, bool)
        for stage in range(len(settings.stages)):
            plan = draw_stage(["camera"] * count, taken_F, stage, settings, rng)
            assert len(plan.added) >= settings.least_devices
            taken_F[plan.added] = True
        assert (~taken_F).sum() >= settings.least_devices


def test_a_signature_that_comes_later_is_taken(registry: Registry, plain_bundle: Path, tmp_path: Path) -> None:
    bundle, store = shutil.copytree(plain_bundle, tmp_path / "bundle"), BundleStore(tmp_path / "files")
    (bundle / SIGNATURE_FILE).unlink(missing_ok=True)
    digest = store.add(registry, bundle, "spring")
    with registry.reading() as connection:
        assert signature_of(connection, digest) is None
    (bundle / SIGNATURE_FILE).write_text("ab" * 32)
    store.add(registry, bundle, "spring")
    with registry.reading() as connection:
        assert signature_of(connection, digest) == "ab" * 32
    (bundle / SIGNATURE_FILE).write_text("no digest")
    with pytest.raises(UserError, match="is no signature; sign the bundle again"):
        store.add(registry, bundle, "spring")


def test_the_database_is_free_while_files_of_a_bundle_are_copied(
    registry: Registry, plain_bundle: Path, tmp_path: Path
) -> None:
    written: list[str] = []

    class BusyStore(BundleStore):
        """Something else writes to the registry before each file is copied."""

        def _put(self, source: Path, digest: str) -> None:
            with registry.writing() as connection:
                written.append(new_enrolment(connection, "me", valid_s=60)[0].token)
            super()._put(source, digest)

    digest = BusyStore(tmp_path / "files").add(registry, plain_bundle, "new")
    with registry.reading() as connection:
        assert bundle_named(connection, digest[:8]) == digest
        assert all(can_enrol(connection, token) for token in written)
    assert len(written) > 1


def test_a_person_halts_and_two_roll_outs_at_once_are_refused(fleet: ToldFleet) -> None:
    rollout = fleet.begin()
    line = f"roll-out {rollout} is not over; autotailor fleet halt {rollout} ends it"
    with fleet.registry.writing() as connection:
        with pytest.raises(UserError, match=line):
            begin(connection, fleet.bundle, SETTINGS, (), fleet.now_s, WINDOW_S)
        stop(connection, rollout)
    assert not fleet.assigned()


def test_a_roll_out_needs_devices_that_tell_and_a_bundle(fleet: ToldFleet) -> None:
    with fleet.registry.writing() as connection:
        with pytest.raises(
            UserError, match="0 devices have reported requests in the last 4 windows; allowed: 24 or more"
        ):
            begin(connection, fleet.bundle, SETTINGS, (), fleet.now_s, WINDOW_S)
        with pytest.raises(UserError, match="is no bundle here"):
            begin(connection, "0" * 64, SETTINGS, (), fleet.now_s, WINDOW_S)


def test_a_damaged_bundle_is_not_taken_and_no_name_touches_a_path(
    registry: Registry, copy: Path, tmp_path: Path
) -> None:
    store = BundleStore(tmp_path / "files")
    digest = store.add(registry, copy, "new")
    assert store.path(digest) == tmp_path / "files" / digest
    (tmp_path / "secret").write_text("x")
    assert store.path("../secret") is None
    assert store.path("..%2fsecret") is None
    file = next(path for path in copy.glob("*.onnx"))
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(Exception, match=r"is not the file that bundle\.json names"):
        store.add(registry, copy, "damaged")


def test_a_registry_of_another_schema_or_address_is_one_line(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/fleet.db"
    Registry.open(url).close()
    with sqlite3.connect(tmp_path / "fleet.db") as connection:
        connection.execute("UPDATE fleet_schema SET version = 99")
    with pytest.raises(UserError, match="its schema has version 99; allowed: 1 to 2; update autotailor here"):
        Registry.open(url)
    with pytest.raises(UserError, match="is no address"):
        Registry.open("fleet.db")
    with pytest.raises(UserError, match="its driver 'psycopg2' is missing"):
        Registry.open("postgresql://me:hidden@localhost/fleet")
    with pytest.raises(UserError, match=r"cannot be used .*") as told:
        Registry.open("sqlite:////proc/none/fleet.db")
    assert "hidden" not in str(told.value)


@pytest.mark.long
def test_a_registry_of_an_earlier_schema_keeps_its_devices(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/fleet.db"
    registry = Registry.open(url)
    with registry.writing() as connection:
        device = enrol(connection, new_enrolment(connection, "me", valid_s=60)[0].token, ASKED)
        record(connection, device.device, Telemetry(sequence=7, bundle=None, sums=RequestSums()), 150.0, WINDOW_S)
    registry.close()
    with sqlite3.connect(tmp_path / "fleet.db") as connection_1:
        for name in ("told", "restored", "restored_s", "lut", "verdict", "verdict_reason", "checked_s"):
            connection_1.execute(f"ALTER TABLE devices DROP COLUMN {name}")
        connection_1.execute("UPDATE fleet_schema SET version = 1")
    connection_1.close()
    registry = Registry.open(url)
    with registry.writing() as connection:
        assert find_device(connection, device.token) == device.device
        (row,) = list_devices(connection)
        assert (row.restored, row.restored_s, row.verdict) == (0, None, None)
        for sequence, ahead in ((7, None), (6, 7), (8, None)):
            told = Telemetry(sequence=sequence, bundle=None, sums=RequestSums())
            assert record(connection, device.device, told, 150.0, WINDOW_S) == ahead
    registry.close()
