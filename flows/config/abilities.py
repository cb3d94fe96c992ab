"""Options that not every learning problem can do yet, refused before anything is worked."""

from functools import reduce
from typing import Any

from pydantic import BaseModel

from tasks.problems import problem_named

ASKING = (
    ("timm", "baselines.siblings", "[]"),
    ("mixing", "base.mixing.is_on", "mixup_alpha and cutmix_alpha 0"),
    ("mixing", "finetune.mixing.is_on", "mixup_alpha and cutmix_alpha 0"),
    ("streams", "stream.in_report", "false"),
    ("bundle", "export.bundle", "false"),
)
"""Ability (`tasks.problems.require`), the path of the value that asks for it where it is true, and what is allowed."""


def check_abilities(config: BaseModel, problem: str, kind: str) -> None:
    """ValueError for an option that needs an ability which the problem of the data (of `kind`) lacks."""
    lacks = problem_named(problem).lacks
    for ability, path, allowed in ASKING:
        section, *_ = path.split(".")
        if ability in lacks and section in type(config).model_fields and _value(config, path):
            option = path.removesuffix(".is_on")
            raise ValueError(
                f"{option} with data.kind={kind}: {problem} cannot do it yet: {lacks[ability]}; allowed: {allowed}"
            )


def _value(config: BaseModel, path: str) -> Any:
    return reduce(getattr, path.split("."), config)
