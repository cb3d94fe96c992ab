"""A registry on a real PostgreSQL: what SQLite gives by having one writer, and a database that goes away and comes back."""

import importlib.util
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import delete, text

from adaptive_runtime.fleet import RequestSums, Telemetry
from tasks.base.errors import UserError
from tasks.operations.fleet.devices import BundleStore, enrol, list_devices, new_enrolment
from tasks.operations.fleet.registry import Registry, metadata, schema
from tasks.operations.fleet.rollouts import advance, begin, list_rollouts, record
from tests.support.agents.agent_processes import soon
from tests.support.fleet.served_registry import served_registry
from tests.support.fleet.told_fleet import ASKED, SETTINGS, WINDOW_S, ToldFleet
from tests.support.postgres import Postgres, postgres, programs

PROGRAMS = programs()
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("psycopg") is None or PROGRAMS is None,
    reason="takes PostgreSQL of Debian and the extra 'postgres'",
)
TOLD = Telemetry(sequence=2**40, bundle=None, sums=RequestSums(requests=10, log_latency=20, in_time=9, confidence=8))


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    assert PROGRAMS is not None, "else skipped"
    with postgres(PROGRAMS) as found:
        yield found


@pytest.fixture
def registry(server: Postgres) -> Iterator[Registry]:
    """An empty one."""
    found = Registry.open(server.url(password=True), WINDOW_S)
    yield found
    with found.writing() as connection:
        for table in reversed(metadata.sorted_tables):
            if table is not schema:
                connection.execute(delete(table))
    found.close()


@pytest.fixture
def fleet(registry: Registry, plain_bundle: Path, tmp_path: Path) -> ToldFleet:
    return ToldFleet(registry, BundleStore(tmp_path / "files").add(registry, plain_bundle, "new"))


@pytest.mark.long
def test_a_slower_bundle_is_halted_there_too(fleet: ToldFleet) -> None:
    fleet.begin()
    assert fleet.tell(5, slower=0.5)[-1] == "halt"
    assert not fleet.assigned()


def waits(registry: Registry) -> bool:
    """Whether a transaction waits for another one."""
    asked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with registry.reading() as connection:
        return bool(connection.execute(text(asked)).scalar_one())


def test_of_two_roll_outs_that_begin_at_once_one_is_refused(fleet: ToldFleet) -> None:
    fleet.tell(SETTINGS.windows_before)
    refused: list[str] = []

    def second() -> None:
        with pytest.raises(UserError) as told, fleet.registry.writing() as connection:
            begin(connection, fleet.bundle, SETTINGS, (), fleet.now_s, WINDOW_S)
        refused.append(str(told.value))

    other = threading.Thread(target=second)
    with fleet.registry.writing() as connection:
        begin(connection, fleet.bundle, SETTINGS, (), fleet.now_s, WINDOW_S)
        other.start()
        assert soon(lambda: waits(fleet.registry) or not other.is_alive())
    other.join(60)
    assert len(refused) == 1
    assert "is not over" in refused[0]
    with fleet.registry.reading() as connection:
        assert len(list_rollouts(connection)) == 1


@pytest.mark.long
def test_two_services_decide_once_on_a_window(fleet: ToldFleet) -> None:
    fleet.begin()
    fleet.tell(2)
    fleet.window += 1
    decided: list[int] = []

    def second() -> None:
        with fleet.registry.writing() as connection:
            decided.append(len(advance(connection, fleet.now_s, WINDOW_S)))

    other = threading.Thread(target=second)
    with fleet.registry.writing() as connection:
        decided.append(len(advance(connection, fleet.now_s, WINDOW_S)))
        other.start()
        assert soon(lambda: waits(fleet.registry) or not other.is_alive())
    other.join(60)
    assert decided == [1, 0]


def test_telemetry_of_a_device_that_comes_twice_at_once_counts_once(registry: Registry) -> None:
    with registry.writing() as connection:
        device = enrol(connection, new_enrolment(connection, "me", valid_s=60)[0].token, ASKED).device

    def tell() -> None:
        with registry.writing() as connection:
            record(connection, device, TOLD, 150.0, WINDOW_S)

    other = threading.Thread(target=tell)
    with registry.writing() as connection:
        record(connection, device, TOLD, 150.0, WINDOW_S)
        other.start()
        assert soon(lambda: waits(registry) or not other.is_alive())
    other.join(60)
    with registry.reading() as connection:
        assert connection.execute(text("SELECT sum(requests) FROM telemetry")).scalar_one() == 10
        assert connection.execute(text("SELECT restored FROM devices")).scalar_one() == 0


def test_a_registry_of_an_earlier_schema_is_upgraded_there_too(server: Postgres, registry: Registry) -> None:
    with registry.writing() as connection:
        for name in ("told", "restored", "restored_s", "lut", "verdict", "verdict_reason", "checked_s"):
            connection.execute(text(f"ALTER TABLE devices DROP COLUMN {name}"))
        connection.execute(text("ALTER TABLE devices ALTER COLUMN sequence TYPE INTEGER"))
        connection.execute(text("UPDATE fleet_schema SET version = 1"))
    again = Registry.open(server.url(password=True))
    with again.writing() as connection:
        device = enrol(connection, new_enrolment(connection, "me", valid_s=60)[0].token, ASKED).device
        assert record(connection, device, TOLD, 150.0, WINDOW_S) is None
        (row,) = list_devices(connection)
    again.close()
    assert (row.id, row.restored, row.verdict) == (device, 0, None)


@pytest.mark.long
def test_a_service_outlives_its_database_and_says_when_to_come_again(
    server: Postgres, registry: Registry, plain_bundle: Path, tmp_path: Path
) -> None:
    with served_registry(tmp_path, plain_bundle, server.url(password=True)) as service:
        device = service.enrolled()
        assert service.post("/v1/telemetry", device.token, TOLD.model_dump_json()).json()["bundle"] is None
        server.stop()
        try:
            answer = service.post("/v1/telemetry", device.token, TOLD.model_dump_json())
        finally:
            server.start()
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert answer.json()["error"] == "the registry's database is away (OperationalError); try again in 5 s"
        assert service.post("/v1/telemetry", device.token, TOLD.model_dump_json()).status_code == 200
        assert "Traceback" not in service.log.read_text()
