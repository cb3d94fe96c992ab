"""Servers that answer over HTTP: Prefect's, its workers', MLflow's, and ours, which all require a token."""

import os
import secrets
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from adaptive_runtime.base.errors import without_passwords
from flows.operations.health.state import ServiceHealth
from tasks.base.errors import UserError, shortened

REFUSED = (401, 403)
NOBODY = "0" * 64
"""A digest that matches no file."""


class ServerCheck:
    """One server. A status other than 200, or no answer, is reported."""

    def __init__(
        self,
        service: str,
        url: str,
        start: str,
        *,
        ca_file: Path | None,
        timeout_s: float,
        login: tuple[str, str] | None = None,
    ) -> None:
        """start: next step if the server does not answer. login: user and password, or None."""
        self.service, self.url, self._start, self._timeout_s = service, url.rstrip("/"), start, timeout_s
        self._verify, self._login = _trusted(ca_file), login

    def run(self, ask: Callable[[httpx.Client], tuple[bool, str, str]]) -> ServiceHealth:
        """Run `ask`, which returns health, description and next step."""
        try:
            with self._client() as client:
                well, said, next_step = ask(client)
        except httpx.InvalidURL as error:
            raise UserError(self.service, f"'{without_passwords(self.url)}' is no address ({error})") from error
        except httpx.HTTPError as error:
            well, said, next_step = False, f"does not answer ({shortened(error) or type(error).__name__})", self._start
        where = without_passwords(self.url)
        return ServiceHealth(service=self.service, where=where, well=well, said=said, next_step=next_step)

    def _client(self) -> httpx.Client:
        timeout_s, verify, login = self._timeout_s, self._verify, self._login
        return httpx.Client(base_url=self.url, timeout=timeout_s, verify=verify, trust_env=False, auth=login)


def prefect_health(url: str, *, ca_file: Path | None, timeout_s: float) -> ServiceHealth:
    """A Prefect server: its database, and whether it accepts the password in the environment."""
    user, mark, password = os.environ.get("PREFECT_API_AUTH_STRING", "").partition(":")
    login, start = (user, password) if mark else None, "start it: prefect server start"
    check = ServerCheck("prefect", url, start, ca_file=ca_file, timeout_s=timeout_s, login=login)

    def ask(client: httpx.Client) -> tuple[bool, str, str]:
        ready = client.get("/ready")
        if not ready.is_success:
            return False, f"its database does not answer ({ready.status_code})", "look at its log, and at PostgreSQL"
        answer = client.get("/admin/version")
        if answer.status_code in REFUSED:
            return False, "refuses the password", "set PREFECT_API_AUTH_STRING to that of the server"
        return _plain(answer, f"version {answer.text.strip()[:40]}" if answer.is_success else "")

    return check.run(ask)


def worker_health(url: str, *, ca_file: Path | None, timeout_s: float) -> ServiceHealth:
    """A worker, asked through its own web server: whether it has polled for work recently."""
    start = "start it with --with-healthcheck"
    check = ServerCheck("worker", url, start, ca_file=ca_file, timeout_s=timeout_s)

    def ask(client: httpx.Client) -> tuple[bool, str, str]:
        answer = client.get("/health")
        if not answer.is_success:
            return False, "has not asked for work lately", "look at its log; does it reach the Prefect server?"
        return True, "asks for work", ""

    return check.run(ask)


def mlflow_health(url: str, *, ca_file: Path | None, timeout_s: float) -> ServiceHealth:
    """An MLflow server: its database, and whether it accepts the password in the environment."""
    user = os.environ.get("MLFLOW_TRACKING_USERNAME", "")
    login = (user, os.environ.get("MLFLOW_TRACKING_PASSWORD", "")) if user else None
    start = "start it: mlflow server"
    check = ServerCheck("mlflow", url, start, ca_file=ca_file, timeout_s=timeout_s, login=login)

    def ask(client: httpx.Client) -> tuple[bool, str, str]:
        answer = client.post("/api/2.0/mlflow/experiments/search", json={"max_results": 1})
        if answer.status_code == 401:
            return False, "refuses the password", "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        return _plain(answer, "its database answers")

    return check.run(ask)


def guarded_health(service: str, url: str, start: str, *, ca_file: Path | None, timeout_s: float) -> ServiceHealth:
    """A registry or relay: every route needs a token, so a working one refuses an invalid token.

    A registry and a fleet's relay look the token up, so this also checks their database.
    """
    check = ServerCheck(service, url, start, ca_file=ca_file, timeout_s=timeout_s)

    def ask(client: httpx.Client) -> tuple[bool, str, str]:
        token = {"Authorization": f"Bearer {secrets.token_hex(32)}"}
        answer = client.get(f"/v1/files/{NOBODY}", headers=token)
        if answer.status_code == 401:
            return True, "asks for a token", ""
        if answer.status_code == 403:
            name = httpx.URL(url).host
            return False, f"does not answer to the name '{name}'", f"start it with that name as an allowed host: {name}"
        return (
            _plain(answer, "")
            if not answer.is_success
            else (False, "answers without a token", "is it the right address?")
        )

    return check.run(ask)


def _plain(answer: httpx.Response, said: str) -> tuple[bool, str, str]:
    """A good answer, or the status of a bad one with a short reason."""
    if answer.is_success:
        return True, said, ""
    return False, f"answers {answer.status_code} ({_line(answer)})", "look at its log"


def _line(answer: httpx.Response) -> str:
    try:
        told: Any = answer.json()
    except ValueError:
        return answer.reason_phrase
    first = next(iter(told.values()), "") if isinstance(told, dict) else told
    return shortened(Exception(str(first)), 100)


def _trusted(ca_file: Path | None) -> ssl.SSLContext | bool:
    if ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise UserError("ca_file", f"'{ca_file}' is no certificate ({shortened(error)})") from error
