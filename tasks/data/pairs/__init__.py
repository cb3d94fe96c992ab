"""Pictures in pairs of files, and pairs of images for networks that compute one from the other."""

from tasks.data.pairs.pictures import PairedPictures, open_pairs

__all__ = ["PairedPictures", "open_pairs"]
