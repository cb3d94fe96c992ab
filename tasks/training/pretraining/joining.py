"""Stage "join": the trained backbone takes its place under the head in the SuperNet of the whole network."""

from pathlib import Path

import torch

import tailor_ir
from tasks.base.progress import Progress
from tasks.base.schemas.results import JoinResult
from tasks.base.schemas.stored import StageResult
from tasks.data import DataSettings, load_splits
from tasks.data.description import remember
from tasks.evaluation.ends import accuracies_of_ends
from tasks.evaluation.models import carry_origin
from tasks.evaluation.subnets import EvaluationData


def run(
    part: str,
    data: DataSettings,
    recalibration_images: int,
    whole: Path,
    backbone: Path,
    folder: Path,
    progress: Progress,
) -> StageResult:
    """Save the joined SuperNet in `folder`/supernet; accuracies of its largest and smallest SubNets on the second data.

    part: the path of the backbone. whole, backbone: folders of SuperNets. Weights of the backbone and its alternatives are
    those of `backbone`, bit by bit. BatchNorm statistics are computed from the second data. If the first stage did not change
    the network's own weights, its statistics stay, too, so that the largest SubNet equals the original network.
    Raises TailorError if the two SuperNets have different backbones.
    """
    net = tailor_ir.load(whole)
    original = net.structure.graph.original()
    answers = net.answers()
    before = {name: net.elastic.tensor(name).clone() for name in (*original.parameters, *original.statistics)}
    taken = net.take(part, tailor_ir.load(backbone))
    moved = any(not torch.equal(before[name], net.elastic.tensor(name)) for name in original.parameters)
    splits = load_splits(data)
    validation = EvaluationData(splits["validation"], splits["train"], recalibration_images=recalibration_images)
    if moved:
        net.set_statistics(net.recalibrate(net.max_config, validation.calibration(net.input_size(net.max_config))))
    else:
        net.set_statistics({name: before[name] for name in original.statistics})
    net.set_statistics(net.recalibrate_alternatives(validation.calibration(net.input_size(net.max_config))))
    result = JoinResult(tensors=len(taken), moved=moved, **accuracies_of_ends(net, validation, splits["test"]))
    progress.say(f"joined: {len(taken)} tensors of '{part}' under the head of the whole network")
    if not moved:
        net.check_against(answers, "stage join, weights as they were")
    net.check_forms(where="stage join")
    net.save(folder / "supernet")
    remember(splits["train"], folder / "supernet")
    carry_origin(whole, folder / "supernet")
    return result.to_json()
