"""Images with a class for each pixel, from files: masks in PNG."""

from tasks.data.masks.pictures import MaskedPictures, open_masks

__all__ = ["MaskedPictures", "open_masks"]
