"""Streams that drift as a stage: a SubNet plays a stream under several methods, and its error is told over time."""

from tasks.streams.images import KnownImages, check_images, held_out_images
from tasks.streams.players import StreamMethod, make_player
from tasks.streams.settings import Settings
from tasks.streams.stage import WINDOWS_FILE, run
from tasks.streams.terminal import streamed_table

__all__ = [
    "WINDOWS_FILE",
    "KnownImages",
    "Settings",
    "StreamMethod",
    "check_images",
    "held_out_images",
    "make_player",
    "run",
    "streamed_table",
]
