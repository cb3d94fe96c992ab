"""Winners that are exported in their adapted form, from side files (`tasks.evaluation.adapted`) beside the shared weights."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tailor_ir import Config, Statistics, SuperNet
from tasks.base.errors import UserError
from tasks.base.schemas.exports import AdaptedTensors
from tasks.base.schemas.winners import Winner
from tasks.evaluation.adapted import AdaptiveSubnet, SideFile, read_side_file
from tasks.evaluation.subnets import Accuracy, EvaluationData, evaluated, statistics_of

WHERE = "export.adapted"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedWinner:
    """A winner in its adapted form.

    subnet: in torch; the reference for its files. tensors: its own ones by their names in the network, BatchNorm statistics
    included. aligning: tensors by which its files align images; empty if they do not. described: facts for its model card.
    """

    config: Config
    subnet: AdaptiveSubnet
    tensors: Statistics
    aligning: Statistics
    described: AdaptedTensors

    def accuracies(self, net: SuperNet, data: Mapping[str, EvaluationData]) -> dict[str, Accuracy]:
        """Accuracies of its answers, by split."""
        return {split: evaluated(self.subnet, net.input_size(self.config), images) for split, images in data.items()}


Adapted = Mapping[str, AdaptedWinner]
"""Adapted winners by the digests of SubNets."""


def own_tensors(net: SuperNet, config: Config, images: EvaluationData, adapted: Adapted) -> Statistics:
    """The tensors of a SubNet that are not shared weights: BatchNorm statistics and adapted tensors."""
    found = adapted.get(net.space.digest(config))
    return statistics_of(net, config, images) if found is None else found.tensors | found.aligning


def read_side_files(paths: Sequence[Path]) -> dict[str, SideFile]:
    """Side files by the digests of their SubNets. UserError: a file cannot be read, or two are of the same SubNet."""
    found: dict[str, SideFile] = {}
    for path in paths:
        file = read_side_file(path)
        other = found.setdefault(file.facts.subnet, file)
        if other is not file:
            got = f"is of SubNet {file.facts.subnet}, as '{other.path}'"
            raise UserError(
                f"{WHERE}: {file.where}", got, allowed="one file for each SubNet", next_step="leave one out"
            )
    return found


def adapted_winners(
    files: Mapping[str, SideFile],
    net: SuperNet,
    winners: Sequence[Winner],
    elsewhere: Collection[str],
    images: EvaluationData,
) -> dict[str, AdaptedWinner]:
    """The adapted winners of side files, by digest.

    elsewhere: digests of winners of other devices, whose files are left out here. images: for BatchNorm statistics, the same as
    for the SubNets that adapted. UserError: a file belongs to another SuperNet, to no winner, or to other BatchNorm statistics.
    """
    configs = {row.digest: row.config for row in winners}
    for digest, file in files.items():
        file.check_supernet(net)
        if digest not in configs and digest not in elsewhere:
            known = ", ".join(f"{row.digest} ({row.budget_ms:g} ms)" for row in winners)
            raise UserError(
                f"{WHERE}: {file.where}",
                f"it belongs to SubNet {digest}, which is no winner",
                allowed=f"side files of {known}",
                next_step="leave it out, or adapt a winner",
            )
    return {digest: _adapted(file, net, configs[digest], images) for digest, file in files.items() if digest in configs}


def _adapted(file: SideFile, net: SuperNet, config: Config, images: EvaluationData) -> AdaptedWinner:
    """A SubNet with the tensors of its side file. UserError: a tensor of it has no place in the exported network."""
    statistics = statistics_of(net, config, images)
    subnet = AdaptiveSubnet.of(net, config, statistics)
    file.give(subnet, net.space.digest(config))
    state = subnet.state()
    tensors = statistics | net.own_tensors(config, state)
    exported, wanted = net.build(config, tensors).state_dict(), subnet.network.state_dict()
    lost = next((name for name, tensor in wanted.items() if not torch.equal(tensor, exported[name])), None)
    if lost is not None:
        raise UserError(
            f"{WHERE}: {file.where}",
            f"tensor '{lost}' of SubNet {net.space.digest(config)} is no tensor of its own in exported files",
            allowed="tensors that one layer alone has",
            next_step="export this SubNet as it was",
        )
    aligning, deviations = {}, None
    if (alignment := subnet.alignment) is not None:
        aligning, deviations = alignment.tensors(), alignment.deviations.item()
    described = AdaptedTensors(
        sha256=file.sha256, steps=file.facts.steps, tensors=len(state), input_deviations=deviations
    )
    return AdaptedWinner(config=config, subnet=subnet, tensors=tensors, aligning=aligning, described=described)
