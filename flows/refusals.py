"""What a run is given that cannot be, told in one line before anything is loaded, started, made or worked.

Nothing here may import torch, Prefect or MLflow: what takes a look costs no more than that look.
"""

import os
from pathlib import Path

from flows.config import FlowConfig, RunConfig
from flows.tracking.addresses import address_of, check_usable
from tasks.data.source import check_folder
from tasks.errors import UserError
from tasks.models.refusals import check_named

GRAPH_FILE = "graph.json"
"""The file by which a folder is a SuperNet (`SuperNet.save`)."""


def check_given(config: FlowConfig) -> None:
    """UserError: a network, checkpoint, SuperNet or data folder that is not there, or is something else."""
    if isinstance(config, RunConfig):
        check_named(config.model)
        if config.pretraining.backbone is not None:
            check_folder(config.pretraining.data)
    elif not (config.supernet / GRAPH_FILE).is_file():
        got = "has no SuperNet in it" if config.supernet.is_dir() else "is no folder"
        raise UserError(f"supernet '{config.supernet}'", got, next_step="give the folder `supernet` of a finished run")
    check_folder(config.data)


def check_places(config: FlowConfig) -> None:
    """UserError: an output folder that cannot be written, or an MLflow that does not answer."""
    check_writable(config.folder)
    check_usable(address_of(config.tracking.uri))


def check_writable(output: Path) -> None:
    """UserError: neither the folder nor one that it could be made in can be written."""
    place = output.resolve()
    while not os.path.lexists(place):
        place = place.parent
    reason = None
    if not place.is_dir():
        reason = "Not a directory"
    elif not os.access(place, os.W_OK | os.X_OK):
        reason = "Read-only file system" if os.statvfs(place).f_flag & os.ST_RDONLY else "Permission denied"
    if reason is not None:
        next_step = "choose another with output_dir=PATH"
        raise UserError(f"output folder '{output}'", f"cannot be written ({reason})", next_step=next_step)
