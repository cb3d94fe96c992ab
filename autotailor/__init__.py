"""AutoTailor from Python: `tailor` is `autotailor run` called with live objects, and gives the same artifacts.

    found = autotailor.tailor(model, data=train_loader, loss=my_loss, score=my_score, devices=["ncnn"], budgets_ms=[2, 4, 8])
    found.front("ncnn")                            # a table
    found.best("ncnn", budget_ms=4).path           # the file for the device

Without loss and score the answers of the network itself are the targets. Stage by stage:

    job = autotailor.Job(model=model, data=train_loader, loss=my_loss, score=my_score)
    net = autotailor.finetune(job).supernet
"""

from typing import TYPE_CHECKING

from importing import public_names

if TYPE_CHECKING:
    from autotailor.calls import (
        Agent,
        Job,
        compile,
        export,
        finetune,
        profile_operators,
        resume,
        sandwich,
        search,
        tailor,
    )
    from autotailor.results import Best, Stage, Tailored
    from flows.pipeline.feasibility import profile
    from tasks.base.errors import UserError
    from tasks.data.own import Data
else:
    __getattr__ = public_names(__name__, __file__)

__all__ = [
    "Agent",
    "Best",
    "Data",
    "Job",
    "Stage",
    "Tailored",
    "UserError",
    "compile",
    "export",
    "finetune",
    "profile",
    "profile_operators",
    "resume",
    "sandwich",
    "search",
    "tailor",
]
