"""A device timed on one night: real operators and SubNets on onnxruntime."""

import pytest

import tailor_ir
from profiling_agents.client import local_agent
from tasks.base.progress import Silent
from tasks.base.schemas.exports import EXPORTS_FILE, Exports
from tasks.measuring.lut import Lut
from tasks.measuring.profile import LUT_FOLDER
from tasks.measuring.profile import Settings as ProfileSettings
from tasks.measuring.subnets import LeasedDevice
from tasks.operations.nightly.records import NightTimes, Settings
from tasks.operations.nightly.timing import ROUNDS_FILE, TIMES_FILE, NightRequest, slowest, time_device
from tasks.report import Sources
from tests.support.report.fixtures import PREDICT, QUICK, SUBNET

SETTINGS = Settings(operators=5, rounds=3)


@pytest.fixture(scope="module")
def times(sources: Sources, tmp_path_factory: pytest.TempPathFactory) -> NightTimes:
    """Of the device of the report's run, with lines of a night that was killed lying in the folder."""
    out, (device,) = tmp_path_factory.mktemp("watch"), sources.devices
    (out / ROUNDS_FILE).write_text("left\n")
    request = NightRequest(
        settings=SETTINGS,
        profile=ProfileSettings(measure=QUICK, subnet=SUBNET),
        timing=PREDICT,
        supernet=sources.supernet,
        lut=device.profile / LUT_FOLDER,
        exports=Exports.read(device.export / EXPORTS_FILE),
    )
    with local_agent(backend="onnxruntime") as client, client.lease():
        result = time_device(LeasedDevice(name=device.name, client=client), request, out, Silent())
    assert NightTimes.read(out / TIMES_FILE).to_json() == result
    return NightTimes.read(out / TIMES_FILE)


def test_the_slowest_operators_of_the_largest_subnet_are_timed_in_rounds(times: NightTimes, sources: Sources) -> None:
    net, lut = tailor_ir.load(sources.supernet), Lut.open(sources.devices[0].profile / LUT_FOLDER)
    wanted = slowest(net, lut, SETTINGS.operators)
    assert [one.digest for one in times.operators] == [feature.digest for feature in wanted]
    left = {feature.digest for feature in net.operators(net.max_config)} - {one.digest for one in times.operators}
    latencies = [lut.get(one.digest) for one in wanted], [lut.get(digest) for digest in left]
    slow, fast = ([entry.latency_ms or 0.0 for entry in found if entry] for found in latencies)
    assert min(slow) >= max(fast)
    assert all(len(one.rounds_ms) <= SETTINGS.rounds for one in times.operators)
    assert any(max(one.rounds_ms, default=0.0) > 0 for one in times.operators)
    assert all(one.title.startswith(feature.operator) for one, feature in zip(times.operators, wanted, strict=True))


def test_the_largest_subnet_and_every_winner_are_timed_with_the_accuracy_of_their_export(
    times: NightTimes, sources: Sources
) -> None:
    exports = Exports.read(sources.devices[0].export / EXPORTS_FILE)
    accuracy = {row.digest: row.accuracy.get("test") for row in exports.winners}
    assert {one.digest for one in times.subnets} == {times.largest, *accuracy}
    assert times.subnets[0].digest == times.largest
    assert all(one.accuracy == accuracy.get(one.digest) for one in times.subnets)
    assert {one.reason for one in times.subnets} == {None}
