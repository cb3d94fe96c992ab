"""Ctrl-C in a terminal, where every process of the group gets it, and SIGTERM: one line, the exit code, seconds."""

import asyncio
import os
import signal
from contextlib import suppress

import pytest

from flows.machine.signals import Terminated, interruptible, interruptible_again, is_interrupted
from flows.progress import Stopped


def test_a_library_that_catches_cancellations_does_not_take_an_interruption_for_itself() -> None:
    async def request() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(5)

    with interruptible(), pytest.raises(KeyboardInterrupt):
        asyncio.run(request())


def test_an_interruption_that_a_library_caught_ends_the_command_at_its_next_step() -> None:
    def command() -> None:
        with interruptible():
            assert not is_interrupted()
            with suppress(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGTERM)
            assert is_interrupted()
            raise Stopped

    with pytest.raises(Terminated):
        command()
    assert not is_interrupted()


def test_what_a_flow_does_at_a_signal_is_replaced_inside_of_it_and_put_back() -> None:
    def flows_own(_number: int, _frame: object) -> None:
        raise AssertionError("the handler of the flow")

    def command() -> None:
        with interruptible():
            signal.signal(signal.SIGTERM, flows_own)
            with interruptible_again():
                with suppress(KeyboardInterrupt):
                    os.kill(os.getpid(), signal.SIGTERM)
                assert is_interrupted()
            assert signal.getsignal(signal.SIGTERM) is flows_own
            raise Stopped

    with pytest.raises(Terminated):
        command()


def test_a_flow_that_no_command_started_keeps_its_handler() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with interruptible_again():
        assert signal.getsignal(signal.SIGTERM) is before
