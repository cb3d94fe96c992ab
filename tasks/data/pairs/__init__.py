"""Pictures in pairs of files, and pairs of images of which networks make one of the other."""

from tasks.data.pairs.pictures import PairedPictures, open_pairs

__all__ = ["PairedPictures", "open_pairs"]
