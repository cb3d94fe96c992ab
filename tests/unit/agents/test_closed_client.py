"""A client that is closed while a thread of it still asks, as when a command is interrupted."""

import threading

import pytest

from profiling_agents.client import AgentClient, AgentError
from profiling_agents.client.transport import Transport


def test_what_a_closed_connection_is_asked_is_one_line() -> None:
    transport = Transport("http://127.0.0.1:9", "token")
    transport.close()
    with pytest.raises(AgentError, match="the connection was closed here"):
        transport.request("PUT", "/v1/lease")
    with (
        pytest.raises(AgentError, match="the connection was closed here"),
        transport.lines("/", headers={}, timeout_s=1.0),
    ):
        pass


def test_the_renewal_of_a_lease_ends_silently_with_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    client = AgentClient("http://127.0.0.1:9", "token")
    client.close()
    renewal = threading.Thread(target=client._renew, args=("lease", 0.001, threading.Event()))
    renewal.start()
    renewal.join(10)
    assert not renewal.is_alive()
    assert failed == []
