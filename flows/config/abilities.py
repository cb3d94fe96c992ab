"""Options that not every learning problem can do yet, refused before anything is worked."""

from collections.abc import Callable
from typing import Any, NamedTuple

from pydantic import BaseModel

from tailor_ir import asks_for_exits
from tasks.problems import problem_named


class Asking(NamedTuple):
    """An option, and whether a config asks by it for an ability of `tasks.problems.require`.

    allowed: what the option may be without the ability.
    """

    ability: str
    option: str
    allowed: str
    asked: Callable[[Any], bool]


ASKING = (
    Asking("timm", "baselines.siblings", "[]", lambda config: bool(config.baselines.siblings)),
    Asking("mixing", "base.mixing", "mixup_alpha and cutmix_alpha 0", lambda config: config.base.mixing.is_on),
    Asking("mixing", "finetune.mixing", "mixup_alpha and cutmix_alpha 0", lambda config: config.finetune.mixing.is_on),
    Asking("exits", "space.exits", "a space without exits", lambda config: asks_for_exits(config.space)),
    Asking("streams", "stream.in_report", "false", lambda config: config.stream.in_report),
    Asking("adaptable", "export.adaptable", "false", lambda config: config.export.adaptable),
    Asking("blocks", "export.blocks", "false", lambda config: config.export.blocks),
)


def check_abilities(config: BaseModel, problem: str, kind: str) -> None:
    """ValueError for an option that needs an ability which the problem of the data (of `kind`) lacks."""
    lacks = problem_named(problem).lacks
    for ability, option, allowed, asked in ASKING:
        section, _ = option.split(".")
        if ability in lacks and section in type(config).model_fields and asked(config):
            raise ValueError(
                f"{option} with data.kind={kind}: {problem} cannot do it yet: {lacks[ability]}; allowed: {allowed}"
            )
