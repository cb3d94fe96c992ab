"""Checksums of all bytes between client and agent: a garbled answer is treated as a lost connection, never as a result."""

import zlib

CHECKSUM_HEADER = "checksum"
SEPARATOR = b" "


class GarbledError(Exception):
    """The content does not match its checksum, or has none. One line."""


def checksum(content: bytes) -> str:
    """CRC-32, 8 hex digits."""
    return f"{zlib.crc32(content):08x}"


def check(content: bytes, stated: str | None) -> None:
    """Raise GarbledError unless the content matches the checksum that its sender stated."""
    if stated is None:
        raise GarbledError("it has no checksum")
    if stated != checksum(content):
        raise GarbledError("it does not fit its checksum")


def to_line(content: bytes) -> bytes:
    """The content (without line breaks) and its checksum as one line."""
    return content + SEPARATOR + checksum(content).encode() + b"\n"


def from_line(line: bytes) -> bytes:
    """The content of a line without its end; GarbledError when it does not match its checksum."""
    content, separator, stated = line.rpartition(SEPARATOR)
    check(content, stated.decode(errors="replace") if separator else None)
    return content
