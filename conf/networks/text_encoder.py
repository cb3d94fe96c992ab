"""A small transformer encoder that classifies texts, or each of their words: word numbers to logits.

Source: Vaswani et al., NeurIPS 2017, https://arxiv.org/abs/1706.03762; LayerNorm before each part as in Xiong et al., ICML
2020, https://arxiv.org/abs/2002.04745. Difference: the answer is the mean over all positions, including padding.

Shapes: B batch, T words, C channels, G heads, D size of a head, K classes.
"""

import torch
from torch import nn

SPREAD = 0.02
"""Standard deviation of initial embeddings, equal for words and positions so that neither dominates."""


class Encoder(nn.Module):
    """Self-attention over all words, then two layers on each word; both have a shortcut."""

    def __init__(self, width: int, heads: int, expand: int) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.before_reading, self.before_layers = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.layers = nn.Sequential(nn.Linear(width, expand * width), nn.GELU(), nn.Linear(expand * width, width))

    def forward(self, x_BTC: torch.Tensor) -> torch.Tensor:
        """(B, T, C) -> (B, T, C)."""
        batch, words, width = x_BTC.shape
        parts = self.query_key_value(self.before_reading(x_BTC)).reshape(batch, words, 3, self.heads, self.size)
        query_BGTD, key_BGTD, value_BGTD = parts.permute(2, 0, 3, 1, 4).unbind(0)
        share_BGTT = ((query_BGTD @ key_BGTD.transpose(-2, -1)) * self.size**-0.5).softmax(dim=-1)
        read_BTC = (share_BGTT @ value_BGTD).transpose(1, 2).reshape(batch, words, width)
        x_BTC = x_BTC + self.project(read_BTC)
        return x_BTC + self.layers(self.before_layers(x_BTC))


class TextEncoder(nn.Module):
    """(B, T) word numbers, int64 -> (B, K) logits; with each_word: (B, T, K)."""

    def __init__(
        self,
        words: int,
        length: int,
        classes: int,
        width: int,
        heads: int,
        depth: int,
        expand: int,
        each_word: bool = False,
    ) -> None:
        super().__init__()
        self.each_word = each_word
        self.words = nn.Embedding.from_pretrained(SPREAD * torch.randn(words, width), freeze=False)
        self.positions = nn.Parameter(SPREAD * torch.randn(1, length, width))
        self.encoders = nn.Sequential(*(Encoder(width, heads, expand) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x_BT: torch.Tensor) -> torch.Tensor:
        """Logits of each text, or of each word."""
        x_BTC = self.encoders(self.words(x_BT) + self.positions)
        logits: torch.Tensor = self.head(self.norm(x_BTC if self.each_word else x_BTC.mean(1)))
        return logits


def network(
    num_classes: int,
    num_words: int,
    length: int,
    width: int = 64,
    heads: int = 4,
    depth: int = 3,
    expand: int = 4,
    each_word: bool = False,
) -> nn.Module:
    """The network with random weights. length: maximum words of a text. depth: number of encoders.

    expand: factor of the hidden width of the two layers on each word. each_word: classify words instead of the text.
    """
    return TextEncoder(num_words, length, num_classes, width, heads, depth, expand, each_word)
