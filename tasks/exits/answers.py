"""What all exits of a SubNet answer: one pass over the images, in which what exits have in common is computed once."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from tailor_ir import Config, SuperNet
from tailor_ir.subnets.prefixes import Prefixes
from tasks.evaluation.subnets import EvaluationData, statistics_of
from tasks.progress import Progress

Answers = tuple[NDArray[np.float32], NDArray[np.int64]]
"""Numbers for classes (N, E, K) of N images at E exits, and labels (N,)."""


@torch.no_grad()
def answers_of(
    net: SuperNet, exits: Sequence[Config], data: EvaluationData, progress: Progress, name: str = "answers of exits"
) -> Answers:
    """Of one SubNet up to each of its exits, in order; each with BatchNorm statistics of its own, as it is exported."""
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
