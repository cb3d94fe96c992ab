"""The text of `--help`, for all commands or one."""

import textwrap
from collections.abc import Iterable
from pathlib import Path

from flows.cli.words import COMMANDS, FLAGS, FLEET_ACTIONS, LUT_ACTIONS
from flows.config.validate import config_groups
from tasks.search.choose.pick import FORMS

WIDTH = 118
"""Width of running text [columns]."""

OF_STAGES = """\
Every command first completes the stages that it needs; stages that are complete under the same settings, inputs and
code are not repeated. After an interruption the same command goes on."""

EXIT_CODES = "Exit code 0, 2 for bad input, 3 for a night that regressed, 130 for Ctrl-C, 143 for SIGTERM."


def general_help(config_folder: Path | None = None) -> str:
    """Commands, groups with their options (including those of `config_folder`), flags and examples."""
    commands = _table((name, command.summary) for name, command in COMMANDS.items())
    actions = _table((f"lut {form}", text) for form, text in LUT_ACTIONS.items())
    flags = _table((flag.form, f"{_where(name)}{flag.text}") for name, flag in FLAGS.items())
    examples = "\n".join(f"  {line}" for command in COMMANDS.values() for line in command.examples)
    return (
        "usage: autotailor COMMAND [OVERRIDE…] [FLAG…]\n"
        "       autotailor COMMAND --help\n\n"
        f"commands:\n{commands}\n\n"
        f"look-up tables (devices, operators and methods filter; store=FOLDER):\n{actions}\n\n"
        f"SubNets of compare: {FORMS}\n\n"
        f"{_groups(config_groups(config_folder), config_folder)}\n\n"
        f"flags:\n{flags}\n\n"
        f"examples:\n{examples}\n\n"
        f"{OF_STAGES}\n{EXIT_CODES}\n"
    )


def command_help(name: str, config_folder: Path | None = None) -> str:
    """One command: its summary, its flags, the groups that it reads, examples."""
    command = COMMANDS[name]
    usage = "\n       ".join(f"autotailor {name} {form}" for form in command.forms)
    flags = _table((flag.form, flag.text) for key, flag in FLAGS.items() if key in command.flags)
    options = config_groups(config_folder)
    groups = {group: options[group] for group in options if group in command.groups}
    parts = [f"usage: {usage}", textwrap.fill(command.about, WIDTH)]
    if actions := {"fleet": FLEET_ACTIONS, "lut": LUT_ACTIONS}.get(name):
        parts.append(f"actions:\n{_table(actions.items())}")
    parts.append(f"flags:\n{flags}")
    if groups:
        parts.append(_groups(groups, config_folder))
    parts.append("\n".join(["examples:", *(f"  {line}" for line in command.examples)]))
    parts.append(f"{OF_STAGES}\n{EXIT_CODES}" if groups else EXIT_CODES)
    return "\n\n".join(parts) + "\n"


def _groups(groups: dict[str, list[str]], config_folder: Path | None) -> str:
    own = f"; with those of {config_folder}" if config_folder else ""
    table = _table((group, ", ".join(options)) for group, options in groups.items())
    return f"option groups (GROUP=OPTION, device=[A,B], +preset=OPTION; values: GROUP.KEY=VALUE{own}):\n{table}"


def _where(flag: str) -> str:
    """Prefix that names the commands of a flag, if these are fewer than three."""
    names = [name for name, command in COMMANDS.items() if flag in command.flags]
    return f"{', '.join(names)}: " if len(names) < 3 else ""


def _table(rows: Iterable[tuple[str, str]]) -> str:
    """Two columns."""
    rows = list(rows)
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join(f"  {name:{width}}{text}" for name, text in rows)
