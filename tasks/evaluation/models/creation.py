"""Creation of networks of all kinds, with one test run."""

import threading

import onnx
import torch
from torch import nn

from tasks.data.problems import CLASSIFICATION, LearningProblem, require
from tasks.data.samples import AnyForm, SampleForm
from tasks.evaluation.models.answers import check_answer
from tasks.evaluation.models.backbone import classifier_of
from tasks.evaluation.models.callables import code_folder, create_callable
from tasks.evaluation.models.checkpoints import load_weights
from tasks.evaluation.models.heads import join_heads
from tasks.evaluation.models.onnx_files import network_of_file
from tasks.evaluation.models.settings import ModelSettings

_DRAWING = threading.RLock()
"""Initial weights are drawn from the random generator that all threads share."""


def create(
    settings: ModelSettings,
    classes: int,
    form: AnyForm,
    *,
    seed: int = 0,
    problem: LearningProblem = CLASSIFICATION,
) -> nn.Module | onnx.ModelProto:
    """The network for `classes` classes and samples of this form: a module, or the content of an .onnx file.

    Weights: the checkpoint, else timm's, else random ones by `seed`. A module has been run once. UserError for an unknown name,
    bad options, weights that do not fit, a missing or corrupt file, and a network that fails or gives anything but the
    problem's raw output, such as (B, classes).
    """
    if settings.kind == "onnx":
        return network_of_file(settings, classes, form, problem)
    with _DRAWING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if settings.kind == "timm":
            own = "give a network of your own: model=callable or model=onnx"
            require(problem, "timm", f"model '{settings.name}'", own)
            form.require("timm", f"model '{settings.name}'", own)
            assert isinstance(form, SampleForm)
            from tasks.evaluation.models.timm_networks import create_timm  # timm takes a second

            where, folder = f"model '{settings.name}'", None
            model = create_timm(settings, classes, *form.shape[:2])
        else:
            where, folder = f"model.name '{settings.name}'", code_folder(settings.name)
            model = create_callable(settings, classes, form, problem.heads)
            if settings.backbone is not None:
                form.require("backbone", f"model.backbone {settings.backbone}", "leave it out")
                assert isinstance(form, SampleForm)
                model = classifier_of(model, settings.backbone, where, classes, form)
        if problem.heads:
            join_heads(model, problem.heads)
        check_answer(where, model, classes, form, own_code=folder, problem=problem)
    if settings.checkpoint is not None:
        load_weights(model, settings.checkpoint)
    return model
