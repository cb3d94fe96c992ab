"""Least squares in a metric: weights that approximate, on data, the results of other weights. All in float64."""

import torch

RIDGE = 1e-4
"""Share of the mean of a metric's diagonal that is added to it, since data never cover some directions."""
TINY = 1e-12


def factor(metric: torch.Tensor) -> torch.Tensor:
    """A lower triangular factor (n, n): its product with its transpose is the metric with a little added to its diagonal.

    More is added if rounding has made the metric indefinite.
    """
    ridge = RIDGE * metric.diagonal().mean() + TINY
    while True:
        heavy = metric.clone()
        heavy.diagonal().add_(ridge)
        root, failed = torch.linalg.cholesky_ex(heavy)
        if not failed:
            return root
        assert metric.isfinite().all()
        ridge = 10 * ridge


def regression(cross: torch.Tensor, metric: torch.Tensor) -> torch.Tensor:
    """The weight (O, n) whose results are nearest to y: cross is E[y xᵀ] (O, n), metric E[x xᵀ] (n, n)."""
    return torch.cholesky_solve(cross.T, factor(metric)).T


class LeftVectors:
    """The first left singular vectors of (n, m), in float64, for any requested rank.

    They come from the eigenvectors of the smaller Gram matrix, which are computed once.
    """

    def __init__(self, matrix: torch.Tensor) -> None:
        self._tall = matrix if matrix.shape[0] > matrix.shape[1] else None
        self._vectors = torch.linalg.eigh(matrix @ matrix.T if self._tall is None else matrix.T @ matrix)[1]

    def __call__(self, rank: int) -> torch.Tensor:
        """The first `rank` vectors (n, rank)."""
        found = self._vectors[:, -rank:].flip(1)
        return found if self._tall is None else torch.linalg.qr(self._tall @ found)[0]


def basis(matrix: torch.Tensor, rank: int) -> torch.Tensor:
    """The first left singular vectors (n, rank) of (n, m), in float64."""
    return LeftVectors(matrix)(rank)


def of_rank(weight: torch.Tensor, rank: int, metric: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Maps (rank, I) and (O, rank), whose product is nearest to (O, I) in a metric (I, I)."""
    up = basis(weight @ factor(metric), rank)
    return up.T @ weight, up


def over_channels(metric: torch.Tensor, channels: int) -> torch.Tensor:
    """The metric (I, I) of channels: the mean over the positions of a kernel of a metric (I · K, I · K)."""
    positions = len(metric) // channels
    return metric.reshape(channels, positions, channels, positions).diagonal(dim1=1, dim2=3).mean(-1)


def through(metric: torch.Tensor, maps: torch.Tensor) -> torch.Tensor:
    """The metric (R · K, R · K) of the patches that a 1×1 map (R, I) makes of patches with a metric (I · K, I · K)."""
    rank, channels = maps.shape
    positions = len(metric) // channels
    half = torch.einsum("ri,ikm->rkm", maps, metric.reshape(channels, positions, -1))
    whole = torch.einsum("rkjl,sj->rksl", half.reshape(rank, positions, channels, positions), maps)
    return whole.reshape(rank * positions, -1)


def mapped(cross: torch.Tensor, maps: torch.Tensor) -> torch.Tensor:
    """The cross moments (O, R · K) with patches mapped by a 1×1 map (R, I), from the cross moments (O, I · K)."""
    channels = maps.shape[1]
    return torch.einsum("oik,ri->ork", cross.reshape(len(cross), channels, -1), maps).reshape(len(cross), -1)


def pivots(matrix: torch.Tensor, count: int) -> torch.Tensor:
    """Rows (count,) of a Gram matrix (n, n), each the one that the rows before explain least: pivoted Cholesky."""
    left = matrix.diagonal().clone()
    rows: list[int] = []
    columns = torch.zeros(count, len(matrix), dtype=matrix.dtype)
    for at in range(count):
        left[rows] = -torch.inf
        row = int(left.argmax())
        rows.append(row)
        root = left[row].clamp_min(TINY).sqrt()
        columns[at] = (matrix[row] - columns[:at, row] @ columns[:at]) / root
        left = left - columns[at].square()
    return torch.tensor(rows)
