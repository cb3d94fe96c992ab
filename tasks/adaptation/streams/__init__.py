"""Streams that drift as a stage: a SubNet plays a stream under several methods, and its error is reported over time."""

from typing import TYPE_CHECKING

from importing import public_names

if TYPE_CHECKING:
    from tasks.adaptation.settings import StreamMethod
    from tasks.adaptation.settings import StreamSettings as Settings
    from tasks.adaptation.streams.players import KnownImages, check_images, held_out_images, make_player
    from tasks.adaptation.streams.stage import WINDOWS_FILE, SubnetOfStream, run
else:
    __getattr__ = public_names(__name__, __file__)
