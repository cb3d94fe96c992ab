"""`autotailor`: the command line. It composes and validates first, and imports heavy libraries for valid commands only."""

import json
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.cli import BAD_INPUT
from flows.cli.arguments import Arguments, help_of, parse
from flows.cli.words import COMMANDS, VIEW_FILE, loaded
from flows.machine import Terminated, end_at_once_from_now, interruptible, is_interrupted, quick_imports
from profiling_agents.lines import chain, printable
from tasks.base.errors import UserError

if TYPE_CHECKING:
    from flows.config import RetargetConfig, RunConfig

INTERRUPTED = 130
TERMINATED = 143
REGRESSED = 3
MOST_OF_NAME = 200


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0, 2 with one line for bad input, 3 after a night that regressed, 130 after Ctrl-C, 143 after SIGTERM."""
    words = list(sys.argv[1:] if argv is None else argv)
    service = COMMANDS[words[0]].service if words and words[0] in COMMANDS else ""
    if service:
        return int(loaded(service)(words[1:]))
    if words == ["--version"]:
        print(f"autotailor {version('autotailor')}")
        return 0
    try:
        if (described := help_of(words)) is not None:
            print(described, end="")
            return 0
        with interruptible():
            return _execute(parse(words))
    except UserError as error:
        return _refuse(error)
    except KeyboardInterrupt as error:
        if argv is None:
            end_at_once_from_now()
        print("autotailor: interrupted; the same command goes on from here", file=sys.stderr)
        return TERMINATED if isinstance(error, Terminated) else INTERRUPTED
    except (Exception, SystemExit) as error:
        if (line := _described(error)) is None:
            raise
        return _refuse(line)


def _described(error: BaseException) -> UserError | None:
    """A UserError in one line for errors that may occur anywhere; None for other errors.

    These are a full disk or memory, a name that is not UTF-8, code that ends Python, and a slow start of Prefect's own server.
    """
    from flows.machine.server import slow_start
    from tasks.base.errors import MAKE_ROOM, shortage

    if type(error) is SystemExit:  # services end with `Ended` instead
        return UserError("code that was called", f"ended Python with exit code {error.code}", next_step="mend it")
    if (what := shortage(error)) is not None:
        return UserError("this machine", what, next_step=MAKE_ROOM)
    for one in chain(error):
        if (late := slow_start(one)) is not None:
            return late
        if isinstance(one, UnicodeEncodeError) and "surrogates" in one.reason:
            return UserError(f"'{one.object[:MOST_OF_NAME]}'", "is a name that is not UTF-8", next_step="rename it")
    return None


def _refuse(error: Exception) -> int:
    print(f"autotailor: {printable(str(error))}", file=sys.stderr)
    return BAD_INPUT


def _execute(arguments: Arguments) -> int:
    """Show the config, or execute the command and write its result. Errors of users are one line."""
    from flows.cli.composed import config_of, shown

    if arguments.shows_config:
        print(shown(arguments), end="")
        return 0
    run = COMMANDS[arguments.command].run
    try:
        result = loaded(run)(arguments, config_of(arguments)) if run else _worked(arguments)
    except Exception as error:
        if is_interrupted() or not isinstance(error, users_errors()):
            raise  # after an interruption: a stage that lost its worker, not bad input
        return _refuse(error)
    if arguments.json:
        _write(arguments.json, result)
    return REGRESSED if isinstance(result, dict) and result.get("regressed") else 0


def _worked(arguments: Arguments) -> Any:
    """Compose, validate and refuse; then start the server, which loads while the libraries are imported, and work."""
    from flows.cli.composed import composed, sweep_of, validated
    from flows.machine import prepare
    from flows.machine.server import start_server
    from flows.pipeline.refusals import check_given, check_places

    sweep = sweep_of(arguments)
    with quick_imports():
        valid = [validated(composed(overrides, arguments), arguments) for overrides in sweep]
    worked = not arguments.dry_run or COMMANDS[arguments.command].plans
    for config in valid:
        check_given(config)
        if worked:
            check_places(config)
    prepare(quiet=True)
    known = _complete(arguments, valid[0])
    wait_until_ready = start_server() if worked and known is None else lambda: None
    with quick_imports():
        from flows.cli.commands import execute, execute_sweep
    wait_until_ready()
    if arguments.multirun:
        return execute_sweep(arguments, list(zip(sweep, valid, strict=True)))
    result = execute(arguments, valid[0], known)
    if arguments.view and not arguments.dry_run:
        result["view"] = _write_view(arguments.view, valid[0], result)
    return result


def _complete(arguments: Arguments, config: "RunConfig | RetargetConfig") -> dict[str, Any] | None:
    """The result of a run with all stages complete, which needs no server; None if something is to be worked."""
    if not COMMANDS[arguments.command].is_found_again or arguments.multirun or arguments.dry_run or arguments.question:
        return None
    from flows.pipeline.complete import found_again, is_remembered

    if not is_remembered(config):
        return None
    with quick_imports():
        from flows.pipeline.stages import table_of
    return found_again(table_of(config), config)


def users_errors() -> tuple[type[Exception], ...]:
    """The errors that are one line, imported after one was raised; `UserError` is an `AdaptiveError`."""
    from adaptive_runtime.base.errors import AdaptiveError
    from profiling_agents.messages import AgentError
    from tailor_ir import TailorError

    return AdaptiveError, TailorError, AgentError


def _write_view(view: Path | bool, config: "RunConfig | RetargetConfig", result: dict[str, Any]) -> str:
    """Write the page of the SuperNet that `compile` made, and return its path."""
    import tasks.report.view
    from flows.pipeline.stages import SUPERNET

    page = view if isinstance(view, Path) else config.folder / VIEW_FILE
    compiled = next(stage for stage in result["stages"] if stage["stage"] == "compile")
    tasks.report.view.run(Path(compiled["folder"]) / SUPERNET, config.name, page)
    print(f"view: {page}")
    return str(page)


def _write(path: Path, result: Any) -> None:
    from tasks.base.artifacts import write_bytes

    try:
        write_bytes(path, (json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode())
    except OSError as error:
        raise UserError("--json", f"'{path}' cannot be written ({error.strerror})") from error
