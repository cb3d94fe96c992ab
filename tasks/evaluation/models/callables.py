"""Networks made by a user's Python function."""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from tasks.base.errors import UserError
from tasks.data.problems.record import ONE_HEAD
from tasks.data.samples import AnyForm
from tasks.evaluation.models.own_code import ROOMS, UserModule, findable, imported, own_names, source_of
from tasks.evaluation.models.refusals import check_source
from tasks.evaluation.models.settings import ModelSettings
from tasks.evaluation.models.tracebacks import USERS_ENDS, line_of, told


def create_callable(
    settings: ModelSettings, classes: int, form: AnyForm, heads: Mapping[str, int] = ONE_HEAD
) -> nn.Module:
    """Call `module:function` (in the working folder, or on the Python path) or `FILE.py:function`.

    The function gets num_classes; for images in_chans; for texts num_words and length; for several inputs the shapes by name,
    and num_words if one is a text; if samples have several targets, heads: the number of classes of each target by name.
    """
    facts = {**form.facts, **({"heads": dict(heads)} if heads else {})}
    where, folder, source = f"model.name '{settings.name}'", code_folder(settings.name), source_of(settings.name)
    with findable((Path.cwd(),) if source is None else source.folders):
        function = _imported(where, settings.name, source)
        try:
            model = function(num_classes=classes, **facts, **settings.options)
        except USERS_ENDS as error:
            if isinstance(error, TypeError) and line_of(error, folder) is None:  # before its first line
                raise UserError(
                    where,
                    f"cannot be called ({error})",
                    allowed=f"a function of num_classes, {', '.join(facts)} and model.options",
                ) from error
            raise UserError(
                where,
                f"raises {told(error, folder)}",
                next_step=_taken(error) or "mend it, or check model.options",
            ) from error
    if not isinstance(model, nn.Module):
        raise UserError(where, f"returns {type(model).__name__}", allowed="torch.nn.Module")
    return model


def _imported(where: str, name: str, source: UserModule | None) -> Callable[..., Any]:
    module, function_name = name.split(":")
    check_source(name)
    try:
        found = importlib.import_module(module) if source is None else imported(source)
        function: Callable[..., Any] = getattr(found, function_name)
    except USERS_ENDS as error:
        line = line_of(error, code_folder(name))
        if line is None and isinstance(error, ImportError | AttributeError):
            raise UserError(
                where,
                f"cannot be imported ({own_names(str(error))})",
                allowed="module:function, in the working folder or on the Python path, or FILE.py:function",
            ) from error
        raise UserError(
            where,
            f"cannot be imported: {told(error, code_folder(name))}",
            next_step=_taken(error) or "mend it, or name another function",
        ) from error
    return function


def _taken(error: BaseException) -> str:
    """The advice if a user's module was searched in a package of AutoTailor with the same name; "" for other errors."""
    room = (getattr(error, "name", None) or "").split(".")[0] if isinstance(error, ImportError) else ""
    if room not in ROOMS:
        return ""
    return (
        f"AutoTailor has a package '{room}', too: import statements find yours, "
        f"importlib.import_module and pickle do not; rename yours"
    )


def code_folder(name: str) -> str:
    """The folder that holds the module of a callable, or its package; the working folder if the module is not found."""
    source = source_of(name)
    return str(Path.cwd() if source is None else source.folder)
