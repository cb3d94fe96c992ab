"""Devices that serve segments: other backends, TLS, options that cannot be, files that are sent once, and a clean end."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from adaptive_runtime.offload.links import DeviceAddress
from adaptive_runtime.offload.split import COORDINATOR, PlacedSegments, SplitNetwork, SplitOptions, SplitSubNet
from benchmarks.simulation.link_trace import BandwidthTrace
from profiling_agents.messages import LoadedSubNet, LoadSubNet
from tests.integration.agents.test_agents_cli import write_certificate
from tests.integration.runtime.offload.test_segments_attacks import greeted
from tests.support.agents.agent_processes import TOKEN, refused, soon
from tests.support.links.devices import Reference, ServingDevice, are_in, inputs, same, serving, write_chain
from tests.support.links.relay import address_of, relayed

PLAN = PlacedSegments(devices=(COORDINATOR, "a", "a", "a"))
DEADLINE_MS = 60_000.0
CHECKED = SplitOptions(check_share=1.0)


@contextmanager
def split_over(
    split: SplitSubNet, address: DeviceAddress, options: SplitOptions | None = None
) -> Iterator[SplitNetwork]:
    with SplitNetwork(split, {"a": address}, [PLAN], options) as network:
        yield network


@pytest.mark.parametrize("backend", ["torch", "openvino"])
def test_other_backends_serve_the_same_segments(backend: str, split: SplitSubNet, reference: Reference) -> None:
    if backend == "openvino":
        pytest.importorskip("openvino")
    with serving(backend) as device, split_over(split, device.address, CHECKED) as network:
        assert are_in(network, "a"), network.states
        for x in inputs(split, 3):
            found = network.infer(x, DEADLINE_MS)
            assert found.devices == (COORDINATOR, "a")
            assert same(found.answer, reference(x), 1e-3)
        assert network.counts.wrong == 0


@pytest.mark.long
def test_a_stream_by_tls_takes_the_device_s_certificate(
    split: SplitSubNet, reference: Reference, tmp_path: Path
) -> None:
    certificate, key = write_certificate(tmp_path)
    options = ("--host", "0.0.0.0", "--tls-cert", str(certificate), "--tls-key", str(key))
    with serving("onnxruntime", *options) as device:
        assert device.url.startswith("tls://")
        url = device.url.replace("0.0.0.0", "127.0.0.1")
        with split_over(split, DeviceAddress(url=url, token=TOKEN, ca_file=certificate)) as network:
            assert are_in(network, "a"), network.states
            (x,) = inputs(split, 1)
            found = network.infer(x, DEADLINE_MS)
            assert found.devices == (COORDINATOR, "a")
            assert same(found.answer, reference(x))
        with split_over(split, DeviceAddress(url=url, token=TOKEN)) as network:
            assert soon(lambda: "CERTIFICATE_VERIFY_FAILED" in network.states["a"][1]), network.states


@pytest.mark.long
def test_options_that_cannot_be_are_one_line() -> None:
    segments = ("--backend", "onnxruntime", "--serve-segments")
    assert "not a loopback address" in refused(*segments, "--host", "0.0.0.0")
    assert "--serve-segments: not with --pull" in refused(*segments, "--pull", "http://127.0.0.1:1")


def test_a_device_ends_cleanly_with_its_children(split: SplitSubNet) -> None:
    with serving() as device, split_over(split, device.address) as network:
        assert are_in(network, "a")
        children = psutil.Process(device.process.pid).children()
        assert children
        device.process.send_signal(signal.SIGTERM)
        assert device.process.wait(60) == 0
        assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
        assert soon(lambda: network.states["a"][0] == "out")


def made_splits(folder: Path, count: int) -> list[SplitSubNet]:
    """SubNets of other widths."""
    widths = range(12, 12 + 8 * count, 8)
    return [SplitSubNet.open(write_chain(folder / str(channels), channels)) for channels in widths]


@pytest.mark.long
def test_files_are_sent_once_and_one_subnet_too_many_takes_the_place_of_one_without_a_coordinator(
    tmp_path: Path,
) -> None:
    with serving("onnxruntime", "--max-subnets", "2") as device:
        for split in made_splits(tmp_path, 3):
            with greeted(device) as caller:
                assert set(caller.ask(LoadSubNet(subnet=split.subnet)).missing) == set(split.files)
            with split_over(split, device.address) as network:
                assert are_in(network, "a"), network.states
                (x,) = inputs(split, 1)
                assert same(network.infer(x, DEADLINE_MS).answer, Reference(split)(x))
            with greeted(device) as caller:
                assert caller.ask(LoadSubNet(subnet=split.subnet)) == LoadedSubNet(digest=split.subnet.digest)


@pytest.mark.long
def test_a_device_serves_more_subnets_at_once_than_four_and_as_many_as_it_may(tmp_path: Path) -> None:
    splits = made_splits(tmp_path, 6)
    with serving("onnxruntime", "--max-subnets", "5") as device, ExitStack() as stack:
        networks = [stack.enter_context(split_over(split, device.address)) for split in splits]
        assert soon(lambda: sum(network.states["a"][0] == "in" for network in networks) == 5)
        (refused_one,) = (network for network in networks if network.states["a"][0] != "in")
        line = "refuses: this device serves 5 SubNets already, which is all it may (--max-subnets)"
        assert soon(lambda: refused_one.states["a"] == ("out", line))


def test_a_recorded_link_is_replayed(split: SplitSubNet, device: ServingDevice) -> None:
    trace = BandwidthTrace(
        origin="drawn", duration_s=100.0, times_s=(0.0,), up_mbps=(40.0,), down_mbps=(3.0,), round_trip_ms=(50.0,)
    )

    def is_measured() -> bool:
        """Whether what is measured is what was recorded; on a machine that stands still it may be slower."""
        with (
            relayed(device.url, trace=trace) as relay,
            split_over(split, DeviceAddress(url=address_of(relay), token=TOKEN)) as network,
        ):
            assert are_in(network, "a"), network.states
            link = network.links["a"]
        assert (link.round_trip_ms or 0) >= 45
        measured = (link.round_trip_ms, link.up_mbps, link.down_mbps)
        return measured == (pytest.approx(50, abs=30), pytest.approx(40, rel=0.6), pytest.approx(3, rel=0.6))

    assert soon(is_measured)
