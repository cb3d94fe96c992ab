"""The answers of all exits of a SubNet, from one pass over the images that computes the exits' common parts once."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from tailor_ir import Config, SuperNet
from tailor_ir.subnets.prefixes import Prefixes
from tasks.base.progress import Progress
from tasks.evaluation.subnets import EvaluationData, statistics_of

Answers = tuple[NDArray[np.float32], NDArray[np.int64]]
"""Logits (N, E, K) of N images at E exits for K classes, and labels (N,)."""


@torch.no_grad()
def answers_of(
    net: SuperNet, exits: Sequence[Config], data: EvaluationData, progress: Progress, name: str = "answers of exits"
) -> Answers:
    """The answers of one SubNet up to each of its exits, in order; each exit has its own BatchNorm statistics, as exported."""
    together = Prefixes(net.elastic, exits, data.features_mib)
    together.activate([statistics_of(net, config, data) for config in exits])
    logits, labels = [], []
    with progress.bar(name, data.counts["images"]) as bar:
        for x_BCHW, y_B in data.batches(net.input_size(exits[-1])):
            found = dict(together(x_BCHW))
            logits.append(np.stack([found[place].float().cpu().numpy() for place in range(len(exits))], 1))
            labels.append(y_B.cpu().numpy())
            bar.advance(len(y_B))
    return np.concatenate(logits), np.concatenate(labels)
