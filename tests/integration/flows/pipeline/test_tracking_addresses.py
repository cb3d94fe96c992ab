"""Where MLflow keeps runs: databases that are damaged, moved or copied, and servers that do not answer."""

import time

import pytest

from flows.pipeline.tracking import start_tracking
from flows.pipeline.tracking.addresses import address_of
from tasks.base.errors import UserError
from tests.support.flows.tracking_addresses import WITHIN_S


def test_a_server_that_does_not_answer_is_one_line_within_seconds() -> None:
    started = time.monotonic()
    with pytest.raises(UserError, match=r"tracking\.uri: 'http://127\.0\.0\.1:9' does not answer"):
        start_tracking(address_of("http://127.0.0.1:9"), "tests", "k", "net")
    assert time.monotonic() - started < WITHIN_S
