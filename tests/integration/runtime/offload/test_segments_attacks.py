"""Whatever reaches a device that serves segments: one clear line, the connection closed, and the device serves on."""

import json
import socket
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from adaptive_runtime.offload.split import SplitSubNet
from profiling_agents.messages import (
    DEVICE_MESSAGES,
    STREAM_PROTOCOL,
    Hello,
    KeptFile,
    LoadedSubNet,
    LoadSubNet,
    Message,
    RefusedStream,
    RunSegments,
    SentActivation,
    SentFile,
    SentProbe,
)
from profiling_agents.streams import LENGTHS, MAGIC, PREFIX
from tests.support.agents.agent_processes import TOKEN
from tests.support.links.devices import ServingDevice

FP32 = SentActivation(coding="fp32")
HELLO = Hello(protocol=STREAM_PROTOCOL, token=TOKEN)


def frame(message: Message | bytes, payload: bytes = b"", **stated: int) -> bytes:
    """A frame as it should be, but for what is stated otherwise: header_bytes, payload_bytes, head_sum, payload_sum."""
    header = message if isinstance(message, bytes) else message.model_dump_json().encode()
    lengths = (MAGIC, stated.get("header_bytes", len(header)), stated.get("payload_bytes", len(payload)))
    head_sum = stated.get("head_sum", zlib.crc32(header, zlib.crc32(LENGTHS.pack(*lengths))))
    return PREFIX.pack(*lengths, head_sum, stated.get("payload_sum", zlib.crc32(payload))) + header + payload


class Caller:
    """A raw connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def send(self, content: bytes) -> None:
        self.connection.sendall(content)

    def told(self) -> Any:
        """The next message. Payloads are empty here."""
        prefix = self._exactly(PREFIX.size)
        return DEVICE_MESSAGES.validate_json(self._exactly(PREFIX.unpack(prefix)[1]))

    def ask(self, message: Message, payload: bytes = b"") -> Any:
        self.send(frame(message, payload))
        return self.told()

    def refused(self) -> str:
        """The line of a refusal, after which the connection is closed."""
        message = self.told()
        assert isinstance(message, RefusedStream), message
        assert "\n" not in message.line
        assert self.connection.recv(1) == b""
        return message.line

    def _exactly(self, count: int) -> bytes:
        content = b""
        while len(content) < count:
            part = self.connection.recv(count - len(content))
            assert part, f"closed without a word after {len(content)} bytes"
            content += part
        return content


@contextmanager
def calling(device: ServingDevice) -> Iterator[Caller]:
    parts = urlsplit(device.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=120) as connection:
        yield Caller(connection)


@contextmanager
def greeted(device: ServingDevice) -> Iterator[Caller]:
    with calling(device) as caller:
        assert caller.ask(HELLO).protocol == STREAM_PROTOCOL
        yield caller


@contextmanager
def loaded(device: ServingDevice, split: SplitSubNet) -> Iterator[Caller]:
    with greeted(device) as caller:
        answer = caller.ask(LoadSubNet(subnet=split.subnet))
        for digest in answer.missing:
            assert caller.ask(SentFile(sha256=digest), split.files[digest]) == KeptFile(sha256=digest)
        if answer.missing:
            answer = caller.ask(LoadSubNet(subnet=split.subnet))
        assert answer == LoadedSubNet(digest=split.subnet.digest)
        yield caller


BEFORE_THE_TOKEN: dict[str, tuple[bytes, str]] = {
    "a web page": (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", "the bytes are no frame of a stream"),
    "a wrong token": (frame(Hello(protocol=STREAM_PROTOCOL, token="wrong")), "missing or wrong token"),
    "no token": (frame(SentProbe(request=0, bytes=0, back=0)), "a stream begins with the token"),
    "a payload with the token": (frame(HELLO, b"1234"), "a stream begins with the token"),
    "another protocol": (frame(Hello(protocol=99, token=TOKEN)), f"streams of protocol 99; allowed: {STREAM_PROTOCOL}"),
    "a huge header": (frame(HELLO, header_bytes=2**32 - 1), "header of 4294967295 bytes; allowed here: 1024"),
    "no JSON": (frame(b"\x80\x04pickle"), "frame: "),
    "an unknown message": (frame(b'{"kind":"exec"}'), "frame: "),
    "unknown fields": (frame(json.dumps({**HELLO.model_dump(), "x": 1}).encode()), "frame: hello.x"),
    "a wrong checksum": (frame(HELLO, head_sum=1), "its header does not fit its checksum"),
}


@pytest.mark.parametrize("case", BEFORE_THE_TOKEN)
def test_without_the_token_nothing_is_read(case: str, device: ServingDevice) -> None:
    content, line = BEFORE_THE_TOKEN[case]
    with calling(device) as caller:
        caller.send(content)
        assert line in caller.refused()


def test_a_silent_caller_is_sent_away(device: ServingDevice) -> None:
    with calling(device) as caller:
        assert "too long" in caller.refused()


Attack = Callable[[SplitSubNet], bytes]


def run(split: SplitSubNet, **changes: Any) -> tuple[RunSegments, int]:
    """The first segment's run, with changes; and the bytes of its input."""
    fields: dict[str, Any] = {"request": 7, "first": 0, "last": 0, "tensors": (FP32,), "coding": "fp32", **changes}
    return RunSegments(**fields), 4 * 3 * 16 * 16


def of_run(payload: int | None = None, stated: dict[str, int] | None = None, **changes: Any) -> Attack:
    def content(split: SplitSubNet) -> bytes:
        message, size = run(split, **changes)
        return frame(message, bytes(size if payload is None else payload), **(stated or {}))

    return content


AFTER_LOADING: dict[str, tuple[Attack, str]] = {
    "a huge tensor": (of_run(0, {"payload_bytes": 2**60}), f"payload of {2**60} bytes; allowed here: 3072"),
    "a tensor of another shape": (of_run(3068), "payload of 3068 bytes; allowed here: 3072"),
    "a tensor of another type": (of_run(tensors=(SentActivation(coding="fp16"),)), "allowed here: 1536"),
    "no tensor": (of_run(0, tensors=()), "0 tensors; segments 0 to 0 read 1"),
    "a hundred tensors": (of_run(0, tensors=(FP32,) * 100), "100 tensors; segments 0 to 0 read 1"),
    "segments that are not there": (of_run(last=99), "segments 0 to 99; allowed: 0 to 3"),
    "segments backwards": (of_run(first=2, last=1), "segments 2 to 1; allowed: 0 to 3"),
    "a garbled tensor": (of_run(stated={"payload_sum": 3}), "its payload does not fit its checksum"),
    "a scale that is none": (
        lambda split: frame(run(split)[0].model_dump_json().replace('"scale":1.0', '"scale":NaN').encode()),
        "frame: run.tensors.0.scale",
    ),
    "a probe too large": (
        lambda split: frame(b'{"kind":"probe","request":0,"bytes":999999999,"back":0}'),
        "frame: probe.bytes",
    ),
    "a foreign file": (
        lambda split: frame(SentFile(sha256="0" * 64), b"x"),
        "a file that no SubNet of this coordinator has",
    ),
    "a second token": (lambda split: frame(HELLO), "the token was shown already"),
}


@pytest.mark.parametrize("case", AFTER_LOADING)
def test_requests_that_the_subnet_does_not_have_end_the_connection(
    case: str, device: ServingDevice, split: SplitSubNet
) -> None:
    attack, line = AFTER_LOADING[case]
    with loaded(device, split) as caller:
        before = psutil.Process(device.process.pid).memory_info().rss
        caller.send(attack(split))
        assert line in caller.refused()
        assert psutil.Process(device.process.pid).memory_info().rss - before < 32 << 20


def test_a_file_of_other_weights_is_refused_by_its_digest(device: ServingDevice, split: SplitSubNet) -> None:
    digest, content = next(iter(split.files.items()))
    foreign = split.subnet.model_copy(
        update={
            "segments": tuple(
                one.model_copy(update={"files": tuple("f" * 64 if name == digest else name for name in one.files)})
                for one in split.subnet.segments
            ),
            "file_bytes": {
                "f" * 64 if name == digest else name: size for name, size in split.subnet.file_bytes.items()
            },
        }
    )
    with greeted(device) as caller:
        answer = caller.ask(LoadSubNet(subnet=foreign))
        assert "f" * 64 in answer.missing
        caller.send(frame(SentFile(sha256="f" * 64), content))
        assert f"the bytes that came have digest {digest[:16]}" in caller.refused()


def test_a_file_larger_than_a_model_may_be_is_refused(device: ServingDevice, split: SplitSubNet) -> None:
    sizes = dict.fromkeys(split.subnet.file_bytes, 1 << 40)
    with greeted(device) as caller:
        caller.send(frame(LoadSubNet(subnet=split.subnet.model_copy(update={"file_bytes": sizes}))))
        assert f"a file of {1 << 40} bytes; allowed: {512 << 20}" in caller.refused()


def test_a_file_that_is_no_model_is_told_and_the_device_serves_on(device: ServingDevice, split: SplitSubNet) -> None:
    import hashlib

    content = b"\x08\x07not a model" * 100
    digest = hashlib.sha256(content).hexdigest()
    segments = tuple(one.model_copy(update={"files": (digest,)}) for one in split.subnet.segments)
    hostile = split.subnet.model_copy(update={"segments": segments, "file_bytes": {digest: len(content)}})
    with greeted(device) as caller:
        assert caller.ask(LoadSubNet(subnet=hostile)).missing == (digest,)
        caller.ask(SentFile(sha256=digest), content)
        caller.send(frame(LoadSubNet(subnet=hostile)))
        assert "not an ONNX model" in caller.refused()
    with loaded(device, split):
        pass


def test_a_run_before_a_subnet_is_refused(device: ServingDevice, split: SplitSubNet) -> None:
    with greeted(device) as caller:
        caller.send(frame(run(split)[0], bytes(run(split)[1])))
        assert "no SubNet is loaded" in caller.refused()


def test_a_frame_that_breaks_off_harms_nobody(device: ServingDevice, split: SplitSubNet) -> None:
    whole = frame(run(split)[0], bytes(run(split)[1]))
    for length in (3, PREFIX.size + 5, len(whole) - 1):
        with loaded(device, split) as caller:
            caller.send(whole[:length])
    time.sleep(0.2)
    with loaded(device, split) as caller:
        caller.send(whole)
        assert caller.told().request == 7
