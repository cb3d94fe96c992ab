"""SubNets over the same device share what they know of it: the link, whether it answers, and when it is back."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from adaptive_runtime.bundle.bundles import OpenBundle
from adaptive_runtime.offload.links import Peer, SharedLink
from adaptive_runtime.offload.rows import PlacedSubNets
from adaptive_runtime.offload.split import SplitSubNet
from tests.support.links.devices import ServingDevice, are_in, serving
from tests.support.runtime.placed import SERVER, write_placed_bundle
from tests.support.runtime.service_process import soon

BLOCK = 1 << 16
LATE_MS = 200.0


def test_connections_measure_one_link_until_none_is_open() -> None:
    link = SharedLink()
    for _ in range(2):
        link.opened()
    link.up(BLOCK, 100.0)
    link.closed()
    link.opened()
    assert link.link.up_mbps == pytest.approx(BLOCK * 8e-3 / 100.0)
    for _ in range(2):
        link.closed()
    assert link.link.up_mbps is not None
    link.opened()
    assert link.link.up_mbps is None, "the next connection may take another way"


def test_a_device_is_doubted_after_a_late_answer_until_a_frame_comes() -> None:
    now_s = [0.0]
    link = SharedLink(lambda: now_s[0])
    assert not link.doubted
    link.heard()
    link.doubt()
    assert link.doubted
    now_s[0] = 0.1
    link.heard()
    assert not link.doubted


def test_one_connection_at_a_time_measures_and_the_others_find_the_link_known() -> None:
    async def found() -> list[bool]:
        link, unknown = SharedLink(), list[bool]()

        async def connects() -> None:
            async with link.measuring() as is_unknown:
                unknown.append(is_unknown)
                if is_unknown:
                    await asyncio.sleep(0.1)
                    link.up(BLOCK, 10.0)
                    link.down(BLOCK, 10.0)
                    link.round_trip(1.0)

        await asyncio.gather(*(connects() for _ in range(3)))
        return unknown

    assert asyncio.run(found()) == [True, False, False]


@pytest.mark.long
def test_a_device_that_one_subnet_finds_frozen_takes_no_part_for_the_others_until_it_is_heard(tmp_path: Path) -> None:
    bundle = write_placed_bundle(tmp_path / "bundle", both=True)
    with serving() as device:
        opened = PlacedSubNets.open(OpenBundle.open(bundle.folder), {SERVER: device.address})
        with closing(opened) as placed:
            large, small = placed.subnets[bundle.large], placed.subnets[bundle.small]
            assert are_in(large.network, SERVER)
            assert are_in(small.network, SERVER)
            assert small.expected(1.0, 0.0) is not None
            os.kill(device.process.pid, signal.SIGSTOP)
            try:
                assert large.network.infer(bundle.x, LATE_MS).on_coordinator is not None
                assert small.network.states[SERVER][0] == "in"
                assert small.expected(1.0, 0.0) is None
            finally:
                os.kill(device.process.pid, signal.SIGCONT)
            assert soon(lambda: small.expected(1.0, 0.0) is not None)


@pytest.fixture(scope="module")
def one_device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SplitSubNet, ServingDevice]]:
    bundle = write_placed_bundle(tmp_path_factory.mktemp("placed") / "bundle")
    placement = bundle.manifest.subnets[0].placement
    assert placement is not None
    with serving() as device:
        yield SplitSubNet.open(bundle.folder, placement.segments), device


@asynccontextmanager
async def kept(split: SplitSubNet, device: ServingDevice, link: SharedLink) -> AsyncIterator[Peer]:
    one = Peer("a", device.address, split.subnets, split.files, link=link)
    keeping = asyncio.create_task(one.keep())
    try:
        await came_in(one)
        yield one
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])


async def came_in(one: Peer) -> None:
    async with asyncio.timeout(60):
        while one.state != "in":
            await asyncio.sleep(0.01)


def test_a_connection_that_is_back_ends_the_pauses_of_the_others(one_device: tuple[SplitSubNet, ServingDevice]) -> None:
    async def is_back() -> None:
        link = SharedLink()
        async with kept(*one_device, link) as one, kept(*one_device, link) as other:
            assert one.link == other.link
            other.pause_s = 3600.0
            other.lose("was late")
            await asyncio.sleep(0.5)
            assert other.state == "out"
            one.lose("was late")
            await came_in(other)

    asyncio.run(is_back())
