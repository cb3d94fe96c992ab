"""Losses and weights of samples without labels. Legend: B batch, K classes."""

import math

import torch
from torch.nn import functional


def entropies(logits_BK: torch.Tensor) -> torch.Tensor:
    """(B,) entropy of the answers [nats]."""
    log_p_BK = logits_BK.log_softmax(1)
    return -(log_p_BK.exp() * log_p_BK).sum(1)


def soft_likelihood_ratios(logits_BK: torch.Tensor) -> torch.Tensor:
    """(B,): −Σ_c p_c · log(p_c / Σ_{j≠c} p_j). Source: ROID (Marsden et al., WACV 2024), eq. 2.
    Its gradient does not vanish when the network is certain. log(1 − p_c) is computed from the logits of the other classes.
    """
    classes = logits_BK.shape[1]
    own = torch.eye(classes, dtype=torch.bool, device=logits_BK.device)
    others_BK = logits_BK[:, None, :].masked_fill(own, -math.inf).logsumexp(2)
    return -(logits_BK.softmax(1) * (logits_BK - others_BK)).sum(1)


def is_reliable(entropy_B: torch.Tensor, classes: int, share: float) -> torch.Tensor:
    """(B,) bool: entropy below `share` · ln K. Source: EATA (Niu et al., ICML 2022), eq. 3; SAR (ICLR 2023), eq. 2."""
    return entropy_B < share * math.log(classes)


def reliable_weights(entropy_B: torch.Tensor, classes: int, share: float) -> torch.Tensor:
    """(B,): exp(E0 − E) if E < E0 = share · ln K, else 0. Source: EATA, eq. 3. No gradient flows through the weights."""
    entropy_B = entropy_B.detach()
    return torch.exp(share * math.log(classes) - entropy_B) * is_reliable(entropy_B, classes, share)


def scaled_to_unit(value_B: torch.Tensor) -> torch.Tensor:
    """(B,) moved and scaled to [0, 1]; all 1 if all are equal, as in a batch of one image."""
    spread = value_B.max() - value_B.min()
    return (value_B - value_B.min()) / spread if spread > 0 else torch.ones_like(value_B)


def roid_weights(logits_BK: torch.Tensor, mean_K: torch.Tensor, temperature: float) -> torch.Tensor:
    """(B,) weights by diversity and certainty. Source: ROID, §3.2. No gradient flows through the weights.

    Diversity is 1 − cos(p, mean), certainty is −entropy, both scaled to [0, 1] over the batch. The weight is exp(diversity ·
    certainty / temperature), or 0 if diversity is below its mean. mean_K: mean answer so far.
    """
    logits_BK = logits_BK.detach()
    p_BK = logits_BK.softmax(1)
    diversity_B = scaled_to_unit(1 - functional.cosine_similarity(p_BK, mean_K[None], dim=1))
    certainty_B = scaled_to_unit(-entropies(logits_BK))
    return torch.exp(diversity_B * certainty_B / temperature) * (diversity_B >= diversity_B.mean())


def prior_corrected(logits_BK: torch.Tensor) -> torch.Tensor:
    """Logits (B, K) after the answers are multiplied by the smoothed class shares of the batch. Source: ROID, §3.4.
    The shares p̄ are the mean answer; smoothed: (p̄ + g) / (1 + gK) with g = max(1/B, 1/K) / max p̄.
    """
    batch, classes = logits_BK.shape
    mean_K = logits_BK.softmax(1).mean(0)
    smoothing = max(1 / batch, 1 / classes) / mean_K.max()
    return logits_BK.log_softmax(1) + ((mean_K + smoothing) / (1 + smoothing * classes)).log()
