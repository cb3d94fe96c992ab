"""`autotailor`: the command line. Composes and validates first, imports heavy libraries only for a valid command."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.arguments import VIEW_FILE, VIEWING, Arguments, general_help, parse
from tasks.errors import UserError

if TYPE_CHECKING:
    from flows.config import AdaptConfig, RunConfig

BAD_INPUT = 2
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0, 2 with one line for bad input, 130 after Ctrl-C."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["agent"]:
        from profiling_agents.cli import main as agent

        return agent(words[1:])
    if words[:1] == ["relay"]:
        from profiling_agents.cli import relay

        return relay(words[1:])
    if not words or "--help" in words or "-h" in words:
        print(general_help(), end="")
        return 0
    try:
        return _execute(parse(words))
    except UserError as error:
        return _refuse(error)
    except KeyboardInterrupt:
        print("autotailor: interrupted; the same command goes on from here", file=sys.stderr)
        return INTERRUPTED


def _refuse(error: Exception) -> int:
    print(f"autotailor: {error}", file=sys.stderr)
    return BAD_INPUT


def _execute(arguments: Arguments) -> int:
    """Compose, then start the server, which loads while the configs are validated and the libraries imported."""
    if arguments.command == "lut":
        from flows import lut

        result: Any = lut.execute(arguments)
        if arguments.json:
            _write(arguments.json, result)
        return 0

    from flows.compose import split_sweep
    from flows.environment import prepare
    from flows.server import start_server

    root = "adapt" if arguments.command == "adapt" else "config"
    sweep = split_sweep(arguments.overrides) if arguments.multirun else [list(arguments.overrides)]
    composed = [_composed(root, overrides, arguments) for overrides in sweep]
    prepare(quiet=True)
    wait_until_ready = start_server()

    from flows.commands import USERS_ERRORS, execute, execute_sweep
    from flows.config import AdaptConfig, RunConfig
    from flows.validate import validate

    model: type[RunConfig | AdaptConfig] = AdaptConfig if root == "adapt" else RunConfig
    configs = [validate(model, config) for config in composed]
    wait_until_ready()
    try:
        if arguments.multirun:
            runs = list(zip(sweep, configs, strict=True))
            result = execute_sweep(arguments.command, runs, dry_run=arguments.dry_run, question=arguments.question)
        else:
            result = execute(arguments.command, configs[0], dry_run=arguments.dry_run, question=arguments.question)
        if arguments.view:
            result["view"] = _write_view(arguments.view, configs[0], result)
    except USERS_ERRORS as error:
        return _refuse(error)
    if arguments.json:
        _write(arguments.json, result)
    return 0


def _composed(root: str, overrides: Sequence[str], arguments: Arguments) -> dict[str, Any]:
    """The config, with no other device than that of `--device`: one of the config's, or an option of the group."""
    from flows.compose import compose_config
    from flows.groups import config_groups, nearest

    name, options = arguments.device, config_groups()["device"]
    config = compose_config(root, overrides, arguments.config_folder)
    if name is None:
        return config
    if name not in config["device"] and name in options and not any(text.startswith("device=") for text in overrides):
        config = compose_config(root, [*overrides, f"device=[{name}]"], arguments.config_folder)
    if name not in config["device"]:
        known = [*config["device"], *(option for option in options if option not in config["device"])]
        hint = nearest(name, known) or "device=[A,B] chooses the devices of a run"
        raise UserError("--device", f"'{name}' is no device", allowed=", ".join(known), next_step=hint)
    return {**config, "device": {name: config["device"][name]}}


def _write_view(view: Path | bool, config: "RunConfig | AdaptConfig", result: dict[str, Any]) -> str:
    """The page of the SuperNet that `compile` made; where it is."""
    import tasks.view
    from flows.stages import SUPERNET

    page = view if isinstance(view, Path) else config.output_dir / VIEW_FILE
    compiled = next(stage for stage in result["stages"] if stage["stage"] == VIEWING)
    tasks.view.run(Path(compiled["folder"]) / SUPERNET, config.name, page)
    print(f"view: {page}")
    return str(page)


def _write(path: Path, result: Any) -> None:
    from tasks.artifacts import write_bytes

    try:
        write_bytes(path, (json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode())
    except OSError as error:
        raise UserError("--json", f"'{path}' cannot be written ({error.strerror})") from error


if __name__ == "__main__":
    sys.exit(main())
