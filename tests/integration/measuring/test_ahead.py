"""What is prepared while a device works: the next piece for another machine, nothing for this one."""

import threading

import pytest

from profiling_agents.client import local_agent
from profiling_agents.messages import Capabilities
from profiling_agents.sensing.machine import running_system
from tasks.measuring.jobs import ahead

WAIT_S = 120


@pytest.fixture(scope="module")
def here() -> Capabilities:
    with local_agent("onnxruntime") as client:
        return client.capabilities()


def test_an_agent_of_this_machine_says_so(here: Capabilities) -> None:
    assert here.running_system == running_system() is not None


def test_this_machine_prepares_nothing_while_it_measures(here: Capabilities) -> None:
    events: list[str] = []

    def prepare(item: int) -> int:
        events.append(f"make {item}")
        return item

    for item in ahead(range(3), prepare, here):
        events.append(f"measure {item}")
    assert events == ["make 0", "measure 0", "make 1", "measure 1", "make 2", "measure 2"]


@pytest.mark.parametrize("system", [None, "another"])
def test_for_another_machine_the_next_is_made_while_it_measures(here: Capabilities, system: str | None) -> None:
    made = [threading.Event() for _ in range(3)]

    def prepare(item: int) -> int:
        made[item].set()
        return item

    found = []
    for item in ahead(range(3), prepare, here.model_copy(update={"running_system": system})):
        found.append(item)
        assert all(event.wait(WAIT_S) for event in made[: item + 2])
    assert found == [0, 1, 2]


def test_an_error_while_preparing_comes_to_the_caller(here: Capabilities) -> None:
    for device in (here, here.model_copy(update={"running_system": None})):
        with pytest.raises(ZeroDivisionError):
            list(ahead([1, 0], lambda item: 1 / item, device))
