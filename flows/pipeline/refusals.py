"""Impossible inputs of a run, reported in one line before anything is loaded, started, made or worked.

Nothing here may load torch, Prefect or MLflow, so that a check costs no more than the check itself.
"""

import os
import tempfile
from pathlib import Path

from flows.config import FlowConfig, RunConfig
from flows.pipeline.tracking.addresses import address_of, check_usable
from tasks.base.errors import UserError
from tasks.base.own_code import check_source
from tasks.data.source import check_folder
from tasks.evaluation.models.settings import check_named

GRAPH_FILE = "graph.json"
"""The SuperNet without its weights; a folder with this file is a SuperNet (`SuperNet.save`)."""


def check_given(config: FlowConfig) -> None:
    """UserError if a network, checkpoint, SuperNet or data folder does not exist, or is of the wrong kind."""
    for option, name in config.data.functions.items():
        check_source(option, name)
    if isinstance(config, RunConfig):
        check_named(config.model)
        if config.pretraining.backbone is not None:
            check_folder(config.pretraining.data)
    elif not (config.supernet / GRAPH_FILE).is_file():
        got = "has no SuperNet in it" if config.supernet.is_dir() else "is no folder"
        raise UserError(f"supernet '{config.supernet}'", got, next_step="give the folder `supernet` of a finished run")
    check_folder(config.data)


def check_places(config: FlowConfig) -> None:
    """UserError if the output folder cannot be written, or MLflow does not answer."""
    check_writable(config.folder)
    check_usable(address_of(config.tracking.uri))


def check_writable(output: Path) -> None:
    """UserError if neither the folder nor its nearest existing parent can be written."""
    place = output.resolve()
    while not os.path.lexists(place):
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            return
    except OSError as error:
        got, next_step = f"cannot be written ({error.strerror})", "choose another with output_dir=PATH"
        raise UserError(f"output folder '{output}'", got, next_step=next_step) from error
