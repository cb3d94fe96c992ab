"""The compose file: what each service has, and that its command lines are ones that our programs take. No Docker is needed."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlflow.cli import cli as mlflow_commands
from prefect.cli._app import _app as prefect_commands

from flows.cli.arguments import parse
from flows.cli.composed import config_of
from flows.machine.secret_files import divided
from tests.support.docs.documents import ROOT, blocks

FOLDER = ROOT / "deploy"
CONTENT: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = CONTENT["services"]
OURS = [name for name, service in SERVICES.items() if service["image"] == "autotailor"]
HOST = "fleet.example.org"
PORTS = {"registry": 8763, "relay": 8764}
FLEET = "postgresql+psycopg://autotailor@postgres:5432/fleet"
"""Devices enrol at the registry, and pull from the relay with the tokens that they have from it: one database."""
SECRET = re.compile("password|secret|token|auth|key", re.IGNORECASE)
WHEEL = ["-P", "-m", "flows.machine.secret_files"]


def program(words: list[str]) -> list[str]:
    """A command line as it is run, without the program that gives it secrets, whose files are secrets of compose."""
    found = [re.sub(r"\$\{AUTOTAILOR_HOST[^}]*\}", HOST, word) for word in words]
    if found[0] == "python":
        assert found[1:4] == WHEEL
        files, found = divided(found[4:])
        assert all(file.parent == Path("/run/secrets") for file in files.values())
    return found


def command_lines() -> list[tuple[str, list[str]]]:
    return [(name, program([*SERVICES[name].get("entrypoint", ()), *SERVICES[name]["command"]])) for name in OURS]


def test_the_services_are_those_of_an_installation() -> None:
    assert set(SERVICES) == {"postgres", "redis", "prefect", "mlflow", "worker", "registry", "relay"}
    assert set(OURS) == {"prefect", "mlflow", "worker", "registry", "relay"}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_no_root_has_limits_and_writes_into_volumes_alone(name: str) -> None:
    service = SERVICES[name]
    assert service["user"].split(":")[0] not in ("0", "root")
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory", "pids"}
    for volume in service.get("volumes", ()):
        source = volume.split(":")[0]
        assert source in CONTENT["volumes"] or source.startswith("./")
    assert set(service["networks"]) <= set(CONTENT["networks"])
    assert not service.get("privileged")


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_that_lasts_has_a_health_check_and_waits_for_what_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
    assert all(each == {"condition": "service_healthy"} for each in service.get("depends_on", {}).values())
    assert service["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", SERVICES)
def test_secrets_are_files_alone(name: str) -> None:
    service = SERVICES[name]
    for variable, value in service.get("environment", {}).items():
        assert not SECRET.search(variable) or str(value).startswith("/run/secrets/"), variable
        assert not re.search(r"://[^/@]*:[^/@]*@", str(value)), variable
    for secret in service.get("secrets", ()):
        assert CONTENT["secrets"][secret]["file"].startswith("./secrets/")
    text = yaml.safe_dump({key: value for key, value in service.items() if key != "secrets"})
    named = set(re.findall(r"/run/secrets/([\w.]+)", text))
    assert named == set(service.get("secrets", ()))
    assert set(CONTENT["secrets"]) == {secret for one in SERVICES.values() for secret in one.get("secrets", ())}


def test_only_services_with_a_token_and_tls_leave_the_machine() -> None:
    for name, service in SERVICES.items():
        for port in service.get("ports", ()):
            words = " ".join(service["command"])
            assert port.startswith("127.0.0.1:") or ("tls" in words and "secret" in words), name


@pytest.mark.parametrize(("name", "words"), command_lines(), ids=lambda value: value if isinstance(value, str) else "")
def test_a_command_line_is_one_that_the_program_takes(name: str, words: list[str]) -> None:
    first, *rest = words
    if first == "mlflow":
        with mlflow_commands.commands[rest[0]].make_context(rest[0], rest[1:]) as context:
            assert context.params["host"] == "0.0.0.0"
            assert context.params["serve_artifacts"]
    elif first == "prefect":
        function, bound, _ = prefect_commands.parse_args(rest, exit_on_error=False, print_error=False)
        assert function.__name__ == "start"
        assert bound.arguments
    else:
        assert (first, rest[0]) == ("autotailor", "fleet")
        config = config_of(parse(rest))
        assert (config.host, config.allowed_hosts) == ("0.0.0.0", (HOST,))
        assert {"registry": config.port, "relay": config.relay_port}[name] == PORTS[name]
        assert config.database == FLEET


@pytest.mark.parametrize("name", OURS)
def test_a_health_check_asks_the_port_of_its_own_service(name: str) -> None:
    service = SERVICES[name]
    asked = " ".join(service["healthcheck"]["test"])
    port = re.findall(r"https?://[^/:]+:(\d+)/", asked)
    own = " ".join(map(str, (*service["command"], *service["environment"].values())))
    assert len(port) == 1
    assert re.search(rf"\b{port[0]}\b", own)
    assert "curl --" in asked
    assert "curl" in (FOLDER / "Dockerfile").read_text()


def test_one_server_of_prefect_has_the_settings_of_several() -> None:
    """So that a second one can be added to it."""
    service = SERVICES["prefect"]
    files, _ = divided([*service["entrypoint"][4:], "prefect"])
    (shown,) = (block.text for block in blocks(ROOT / "docs" / "workers.md") if "prefect_redis.messaging" in block.text)
    settings = dict(re.findall(r"(PREFECT_\w+)=(\S+)", shown))
    for name, value in settings.items():
        if value.startswith('"$(cat'):
            assert name in files
        elif "redis" in value:
            assert service["environment"][name] == value
    assert {name for name in (*service["environment"], *files) if "REDIS" in name} <= set(settings)


def test_the_image_is_of_the_locked_install_and_of_no_root() -> None:
    text = (FOLDER / "Dockerfile").read_text()
    assert "--no-deps --require-hashes --requirement requirements.lock" in text
    users = re.findall(r"^USER (.*)$", text, re.MULTILINE)
    assert users[-1] == SERVICES["worker"]["user"]
    left_out = (FOLDER / "Dockerfile.dockerignore").read_text().split()
    assert {"deploy/secrets", ".git", ".venv"} <= set(left_out)


def test_databases_of_the_commands_are_made() -> None:
    made = set(re.findall(r"CREATE DATABASE (\w+);", (FOLDER / "databases.sql").read_text()))
    used = set(re.findall(r"postgres:5432/(\w+)", (FOLDER / "compose.yaml").read_text()))
    assert used == {*made, SERVICES["postgres"]["environment"]["POSTGRES_DB"]} - {"locks"}
