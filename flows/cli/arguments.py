"""The words of a command line, parsed or refused with one line. Nothing heavy is imported here."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from flows.cli.words import COMMANDS, FLAGS, command_help, general_help
from flows.config.validate import NETWORKS, nearest, of_network, of_samples
from tasks.base.earlier import gone, name_now
from tasks.base.errors import UserError
from tasks.search.choose import FILE_END, FORMS, Question, RuleKind, WinnerRule, pick

RULES: dict[str, RuleKind] = {"--budget-ms": "budget_ms", "--accuracy-share": "accuracy_share", "--knee": "knee"}
SHORT = "tailor"
"""The command whose network and flags stand for options."""
CONFIG = "job"
"""Hydra's name for the config that `--cfg` shows."""
PATHS = ("--json", "--config-dir", "--to")
NESTED = ("profile", "rollout")
"""Options of actions that have options of their own."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """One parsed command."""

    command: str
    overrides: tuple[str, ...]
    json: Path | None
    multirun: bool
    config_folder: Path | None
    view: Path | bool  # True: `VIEW_FILE` in the output folder
    dry_run: bool
    words: tuple[str, ...] = ()
    """For `lut` and `fleet`: the action and its names; for `convert`: files; for `deploy` and `stress`: the device."""
    device: str | None = None
    question: Question | None = None
    shows_config: bool = False
    to: Path | None = None  # file for the chosen SubNet
    package: str | None = None  # the part of the config to show; None: all of it

    @property
    def retargets(self) -> bool:
        """Whether the command starts from a given SuperNet: `retarget`, or `nightly` with one."""
        when = COMMANDS[self.command].retargets
        given = any(text.lstrip("+").startswith("supernet=") for text in self.overrides)
        return when == "always" or (when == "supernet=" and given)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError("command line", message, next_step=f"see '{self.prog} --help'")


def help_of(argv: Sequence[str]) -> str | None:
    """The text of `--help` for all commands or one; None without the flag. UserError if there is no such command."""
    if argv and not {"--help", "-h"} & set(argv):
        return None
    parser = _Parser(prog="autotailor", add_help=False, allow_abbrev=False)
    parser.add_argument("--config-dir", type=Path)
    found, words = parser.parse_known_args(argv)
    _check_config_folder(found.config_dir)
    if words and not words[0].startswith("-"):
        command = name_now("command", "command", words[0])
        _check_command(command)
        return command_help(command, found.config_dir)
    return general_help(found.config_dir)


def parse(argv: Sequence[str]) -> Arguments:
    """Arguments of every command except `agent` and `relay`. UserError for an unknown command or flag."""
    command, rest = name_now("command", "command", argv[0]), argv[1:]
    _check_command(command)
    found = _parser(command).parse_intermixed_args(_with_a_view_value(rest))
    _check_flags(command, found)
    view: Path | bool = found.view is not None and (Path(found.view) if found.view else True)
    words = tuple(filter(COMMANDS[command].is_word, found.overrides))
    overrides = tuple(word for word in found.overrides if word not in words)
    if command == SHORT:
        overrides = (*_long_form(words, overrides, found), *overrides)
    arguments = Arguments(
        command=command,
        overrides=overrides,
        config_folder=found.config_dir,
        view=view,
        words=words,
        question=_question(command, found, words, overrides),
        shows_config=_shows_config(found),
        **{name: getattr(found, name) for name in ("json", "multirun", "dry_run", "device", "to", "package")},
    )
    _check_paths(arguments)
    return arguments


def _parser(command: str) -> _Parser:
    parser = _Parser(prog=f"autotailor {command}", add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    for name, flag in FLAGS.items():
        forms = flag.form.split(", ")
        names = [form.split()[0] for form in forms]
        if " " in forms[0]:
            parser.add_argument(*names, type=Path if name in PATHS else str)
        else:
            parser.add_argument(*names, action="store_true")
    return parser


def check_action(arguments: Arguments) -> None:
    """UserError: unknown action, too few or many words, or options that the action does not have."""
    name, words = arguments.command, arguments.words[1:]
    command, action = COMMANDS[name], (*arguments.words[:1], "")[0]
    if action not in command.options:
        hint = nearest(action, command.options) or f"see '{command.page}'"
        got = f"'{action}' is unknown" if action else "nothing to do"
        raise UserError(name, got, allowed=", ".join(command.actions), next_step=hint)
    form = next(form for form in command.actions if form.split()[0] == action)
    places = form.split()[1:]
    if len(words) < len(places) or (len(words) > len(places) and "SRC…" not in places):
        got = f"got {len(words)} names"
        raise UserError(f"{name} {action}", got, next_step=f"write autotailor {name} {form}")
    options = command.options[action]
    for override in arguments.overrides:
        key = override.split("=", 1)[0].lstrip("+~")
        group = key.split(".")[0]
        if (group if group in NESTED else key) not in options:
            allowed = ", ".join(options) or "none"
            raise UserError(f"option '{key}'", f"is not one of '{name} {action}'", allowed=allowed)


def _check_command(command: str) -> None:
    if known := gone("command", command):
        raise known
    if command not in COMMANDS:
        hint = nearest(command, COMMANDS) or "see 'autotailor --help'"
        raise UserError(f"command '{command}'", "is unknown", allowed=", ".join(COMMANDS), next_step=hint)


def _given(found: argparse.Namespace, flag: str) -> Any:
    """The value of a flag; None without the flag."""
    value = getattr(found, flag.removeprefix("--").replace("-", "_"), None)
    return None if value is False else value


def _check_flags(command: str, found: argparse.Namespace) -> None:
    """UserError for flags that belong to other commands."""
    for flag in FLAGS:
        if _given(found, flag) is not None and flag not in COMMANDS[command].flags:
            allowed = ", ".join(name for name, other in COMMANDS.items() if flag in other.flags)
            hint = "device=[NAME] chooses the devices of a run" if flag == "--device" else ""
            raise UserError(flag, f"is not a flag of '{command}'", allowed=f"with {allowed}", next_step=hint)


def _shows_config(found: argparse.Namespace) -> bool:
    if found.cfg not in (None, CONFIG):
        raise UserError("--cfg", f"got '{found.cfg}'", allowed=f"{CONFIG}; Hydra's own settings are not options here")
    if found.package is not None and found.cfg is None:
        raise UserError("--package", "shows a part of the config", next_step=f"write --cfg {CONFIG} before it")
    return found.cfg is not None


def _question(
    command: str, found: argparse.Namespace, words: Sequence[str], overrides: Sequence[str]
) -> Question | None:
    """The question to a search; None without one. UserError for impossible values."""
    asks = COMMANDS[command].asks
    if asks == "pair" and len(words) != 2:
        form = f"autotailor {command} A B"
        raise UserError(command, f"got {len(words)} SubNets", allowed=f"two: {FORMS}", next_step=f"write {form}")
    for word in words if asks in ("pair", "files") else ():
        pick(word)
    if asks == "pair":
        return Question(pair=(words[0], words[1]))
    if asks == "files" and words:
        if found.dry_run:
            raise UserError("--dry-run", "is about stages, not about files", next_step="leave the files out")
        return Question(files=tuple(words))
    given = {flag: value for flag in RULES if (value := _given(found, flag)) is not None}
    if not given or asks != "rule":
        return None
    if len(given) > 1:
        raise UserError(" and ".join(given), "choose one SubNet each", next_step="leave all but one of them out")
    flag, text = next(iter(given.items()))
    rule = WinnerRule(RULES[flag], 0.0 if flag == "--knee" else _number(flag, text))
    for option in ("search.budgets_ms", "search.device_budgets_ms"):
        if rule.kind == "budget_ms" and any(text.startswith(f"{option}=") for text in overrides):
            raise UserError("--budget-ms", f"is given beside {option}", next_step="leave one of them out")
    return Question(rule=rule)


def _long_form(words: Sequence[str], overrides: Sequence[str], found: argparse.Namespace) -> list[str]:
    """The options that the network and the flags of `tailor` stand for. UserError: no network, no samples, no number."""
    form = f"write autotailor {SHORT} NET --data PATH"
    if len(words) != 1:
        raise UserError(SHORT, f"got {len(words)} networks", allowed=f"one: {NETWORKS}", next_step=form)
    options, own = of_network(words[0]), [text.split("=", 1)[0] for text in overrides]
    if options[0] == "model=timm":
        options.append("model.pretrained=true")
    if found.data is not None:
        options += of_samples(found.data)
        options += [] if "problem" in own else ["problem=fidelity"]
    elif "data" not in own:
        raise UserError(SHORT, "has no samples", next_step=form)
    if found.budget_ms is not None:
        budgets = [f"{_number('--budget-ms', text):g}" for text in found.budget_ms.split(",")]
        options.append(f"search.budgets_ms=[{','.join(budgets)}]")
    if found.minutes is not None:
        options.append(f"minutes={_number('--minutes', found.minutes):g}")
    return options


def _number(flag: str, text: str) -> float:
    is_share = flag == "--accuracy-share"
    with suppress(ValueError):
        value = float(text)
        if 0 < value <= (1.0 if is_share else sys.float_info.max):
            return value
    allowed = "a number above 0" + (" and up to 1, such as 0.95" if is_share else "")
    raise UserError(flag, f"got '{text}'", allowed=allowed)


def _with_a_view_value(words: Sequence[str]) -> list[str]:
    """Give a bare `--view` an empty value, so that it does not take the following override as its file."""
    found = []
    for position, word in enumerate(words):
        following = words[position + 1] if position + 1 < len(words) else ""
        alone = word == "--view" and (not following or following[0] in "-+~" or "=" in following)
        found.append(f"{word}=" if alone else word)
    return found


def _check_paths(arguments: Arguments) -> None:
    _check_config_folder(arguments.config_folder)
    if arguments.json:
        _check_file("--json", arguments.json)
    if arguments.to:
        _check_file("--to", arguments.to)
        if arguments.to.suffix != FILE_END:
            raise UserError("--to", f"got '{arguments.to}'", allowed=f"a file that ends in {FILE_END}")
        if arguments.question is None:
            raise UserError("--to", "is of one chosen SubNet", next_step=f"choose it by {', '.join(RULES)}")
        if arguments.multirun:
            raise UserError("--to", "is one file, --multirun makes several", next_step="leave one of them out")
    if arguments.view is not False and arguments.multirun:
        raise UserError("--view", "shows one SuperNet, --multirun makes several", next_step="leave one of them out")
    if isinstance(arguments.view, Path):
        if arguments.view.suffix != ".html":
            raise UserError("--view", f"got '{arguments.view}'", allowed="a file that ends in .html")
        _check_file("--view", arguments.view)


def _check_config_folder(folder: Path | None) -> None:
    if folder and not folder.is_dir():
        raise UserError("--config-dir", f"'{folder}' is not a folder", next_step="make it or leave it out")


def _check_file(flag: str, path: Path) -> None:
    if not path.resolve().parent.is_dir():
        raise UserError(flag, f"folder '{path.resolve().parent}' does not exist", next_step="make it first")
    if path.is_dir():
        raise UserError(flag, f"'{path}' is a folder", allowed="a file")
