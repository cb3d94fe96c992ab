"""A deployed bundle: every answer is of the SubNet that it names, while SubNets are swapped, fail, and lose files."""

import numpy as np

import adaptive_runtime
from adaptive_runtime.pool import Variant
from tests.support.runtime import deployed
from tests.support.runtime.asking import Answers, answers_while_switched
from tests.support.runtime.deployed import TOLERANCE, Written, differs

model = deployed.model
written = deployed.written


def test_no_request_of_four_threads_is_lost_or_mixed_up_while_subnets_are_swapped(written: Written) -> None:
    total, threads, switches = 10_000, 4, 50
    expected, rng = written.answers, np.random.default_rng(1)
    wanted = [Variant(digest=digest, exit=exit) for digest, exit in expected]
    with adaptive_runtime.load(written.folder, memory_mib=30.0) as model:

        def enough(mine: Answers) -> bool:
            return len(mine) >= total // threads and model.state.switches > switches

        def switch() -> None:
            one = wanted[rng.integers(len(wanted))]
            model.use(one.digest, one.exit, wait=bool(rng.integers(2)))

        answers = answers_while_switched(model, written.x, threads, enough, switch)
        state = model.state
    assert len(answers) == state.requests >= total
    assert not state.taken_out
    assert len({answer.subnet for _, answer in answers}) == len(written.digests)
    last = {one.digest: one.config["exit"] for one in written.manifest.subnets}
    for at, answer in answers:
        (exit,) = answer.exits
        keys = (
            [(answer.subnet, exit), (answer.subnet, None)] if exit == last[answer.subnet] else [(answer.subnet, exit)]
        )
        worst = min(differs(answer.logits, expected[key][at : at + 1]) for key in keys if key in expected)
        assert worst <= TOLERANCE
