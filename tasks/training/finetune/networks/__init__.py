"""Networks in training, one class for each way of training; each defines the trained part of a step, and its losses.

`open_network` gives the network of a phase of a job, with the job's initial weights.
"""

from torch import nn

import tailor_ir
from tailor_ir import Choice, SuperNet
from tasks.data import Dataset
from tasks.evaluation.models import create, load_weights
from tasks.evaluation.unrolling import Unrolled, unrolled
from tasks.training.finetune.job import Job, TrainingPhase
from tasks.training.finetune.networks.exits import open_exits
from tasks.training.finetune.networks.record import Forward, FrozenOriginal, Judge, Role, Trainable, Verdict
from tasks.training.finetune.networks.supernet import (
    TrainableBranches,
    TrainableNetwork,
    TrainableSuperNet,
    sample_roles,
)
from tasks.training.finetune.settings import FROZEN, OF_BLOCKS, OF_EXITS, Settings


def open_network(job: Job, phase: TrainingPhase, dataset: Dataset) -> Trainable:
    """The network in the training mode of the phase."""
    if job.finetune is not None:
        assert job.supernet is not None
        return _supernet(tailor_ir.load(job.supernet), job, phase, job.finetune, dataset)
    assert job.model is not None
    assert job.initial is not None
    untrained = job.model.model_copy(update={"pretrained": False, "checkpoint": None})
    module = create(untrained, dataset.classes, dataset.form, problem=dataset.problem)
    assert isinstance(module, nn.Module)
    load_weights(module, job.initial)
    return TrainableNetwork(module, dataset.form.size, job.settings, dataset.problem)


def _supernet(net: SuperNet, job: Job, phase: TrainingPhase, settings: Settings, dataset: Dataset) -> Trainable:
    strategy, problem = phase.strategy, dataset.problem
    assert strategy is not None
    original = None
    fixed: dict[str, Choice] = {}
    if strategy in FROZEN:
        before = [one.strategy for one in job.phases if one.last_step == phase.first_step]
        original = FrozenOriginal(net, settings.seed, refit=not FROZEN.issuperset(before))
    elif any(one.strategy in OF_BLOCKS for one in job.phases if one.first_step >= phase.last_step):
        fixed = {each.name: each.default for each in net.space.variables if each.kind == "block"}
    if strategy in OF_EXITS:
        return open_exits(net, job, phase, settings, original, fixed)
    if strategy == "branches":
        assert original is not None
        return TrainableBranches(net, original, settings)

    def draw(step: int) -> list[Role]:
        return sample_roles(net, strategy, settings, step, (step - phase.first_step) / phase.steps, fixed=fixed)

    teacher = net.build(net.max_config) if settings.teacher == "base" else None
    share = settings.soft_share(strategy, problem.distils)
    trained = TrainableSuperNet(net, draw, teacher, settings, share, original, problem)
    forward = unrolled(net.structure.graph, dataset, net.elastic, dataset.source.unroll)
    if isinstance(forward, Unrolled):
        trained.runner = forward
    return trained
