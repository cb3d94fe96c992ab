"""Connections without a token take no place of those who have shown one."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from profiling_agents.network.guard import FEWEST_STRANGERS, Places


@dataclass(eq=False)
class Visit:
    """A connection."""

    is_silent: bool = True
    dropped: bool = False

    def drop(self) -> None:
        """Closed by the service."""
        self.dropped = True


def test_strangers_make_room_for_each_other_and_for_whoever_has_the_token() -> None:
    places = Places(64)
    silent = [Visit() for _ in range(500)]
    for one in silent:
        places.enter(one)
    holder = Visit()
    places.enter(holder)
    assert not holder.dropped, "the newest has time to show its token"
    assert places.admit(holder)
    assert [one.dropped for one in silent].count(False) == FEWEST_STRANGERS - 1
    for _ in range(500):
        places.enter(Visit())
    assert not holder.dropped


def test_who_is_being_answered_is_not_closed_for_a_newcomer() -> None:
    places = Places(1)
    asking = [Visit(is_silent=False) for _ in range(FEWEST_STRANGERS)]
    for one in asking:
        places.enter(one)
    newest = Visit(is_silent=False)
    places.enter(newest)
    assert newest.dropped
    assert not any(one.dropped for one in asking)


@given(st.lists(st.sampled_from(["enter", "admit", "leave"]), max_size=80), st.integers(1, 4))
def test_there_are_never_more_connections_than_places(steps: list[str], known: int) -> None:
    places, there = Places(known), list[Visit]()
    admitted = set[int]()
    for step in steps:
        if step == "enter":
            there.append(Visit())
            places.enter(there[-1])
        elif there and step == "admit":
            one = there[-1]
            full = len(admitted) >= known and id(one) not in admitted
            assert places.admit(one) == (not full)
            admitted |= set() if full else {id(one)}
        elif there:
            one = there.pop()
            places.leave(one)
            admitted.discard(id(one))
