"""A small vision transformer for images of 32 pixels whose patches are made by two convolutions.

Patches that are cut out need far more images before attention learns anything; with convolutions a transformer learns
as soon as a convolutional network. Source: Xiao et al., Early Convolutions Help Transformers See Better, NeurIPS 2021.
"""

from timm.models.vision_transformer import VisionTransformer
from torch import nn

GROUPS = 4
"""Of the normalisation behind the convolutions: a transformer without any BatchNorm."""


def network(num_classes: int, in_chans: int, size: int = 32, width: int = 64, depth: int = 4) -> nn.Module:
    """For images (B, in_chans, size, size); a token for each 4 x 4 pixels."""
    half = width // 2
    patches = nn.Sequential(
        nn.Conv2d(in_chans, half, 3, stride=2, padding=1, bias=False),
        nn.GroupNorm(GROUPS, half),
        nn.ReLU(),
        nn.Conv2d(half, width, 3, stride=2, padding=1, bias=False),
        nn.GroupNorm(GROUPS, width),
        nn.ReLU(),
    )
    transformer = VisionTransformer(
        img_size=size // 4,
        patch_size=1,
        in_chans=width,
        num_classes=num_classes,
        embed_dim=width,
        depth=depth,
        num_heads=4,
    )
    return nn.Sequential(patches, transformer)
