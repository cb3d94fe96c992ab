"""The command line's words: commands, flags, help. Nothing heavy is imported here."""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tasks.choose import Question, Rule, pick
from tasks.choose.pick import FORMS
from tasks.choose.rules import Kind
from tasks.errors import UserError

COMMANDS = {
    "run": "the whole pipeline: any DNN, any device, the best SubNet for every budget",
    "compile": "make a SuperNet of the network",
    "finetune": "… and train it",
    "enumerate": "list every unique operator of all SubNets",
    "profile": "… and measure each on the devices",
    "predict": "build and check the latency and accuracy predictors",
    "search": "… and find the best SubNet for every latency budget",
    "compare": "… and show two SubNets layer by layer: compare A B",
    "export": "… and write, check and measure their ONNX and NCNN files",
    "report": "… and write report.html (the same as run)",
    "adapt": "an existing SuperNet to other devices: supernet=FOLDER device=[…]",
    "lut": "look-up tables: show, diff, export, merge, compact",
    "agent": "the device-side service; see 'autotailor agent --help'",
    "relay": "where clients meet an agent that cannot be dialled; see 'autotailor relay --help'",
}

LUT_ACTIONS = {
    "show": "devices, operators, failed and noisy ones, age",
    "diff DEVICE DEVICE": "ratios of two devices for each operator type, operators that only one has",
    "export FILE.csv": "all entries as CSV",
    "merge SRC… DST": "take over what stores SRC know and store DST does not, or knows from earlier",
    "compact": "one file in the place of many; safe while others read and write",
}

EXAMPLES = """\
examples:
  autotailor run
  autotailor run model=timm model.name=resnet26 device=[ncnn] search.budgets_ms=[1,2] finetune.epochs=3 output_dir=runs/a
  autotailor run +preset=quick
  autotailor run model=onnx model.path=net.onnx data=imagefolder data.path=photos
  autotailor run device=[remote] device.remote.agent=http://board:8750 device.remote.token_file=token
  autotailor run --multirun finetune.epochs=2,4 +preset=quick
  autotailor search search.budgets_ms=[1,2,4] --json winners.json
  autotailor search --budget-ms 2 --device ncnn
  autotailor search --accuracy-share 0.95 search=exact
  autotailor compare 1ms 2ms --device ncnn --json difference.json
  autotailor profile +preset=mobilenetv2 device=[ncnn] --dry-run
  autotailor compile model=timm model.name=resnet26 --view supernet.html
  autotailor adapt supernet=outputs/supernet device=[ncnn]
  autotailor lut show operators=[Conv]
  autotailor lut diff ncnn onnxruntime

Every command first completes the stages that it needs; stages that are complete under the same settings, inputs and
code are not repeated. After an interruption the same command goes on. Exit code 0, 2 for bad input, 130 for Ctrl-C."""


RULES: dict[str, Kind] = {"--budget-ms": "budget_ms", "--accuracy-share": "accuracy_share", "--knee": "knee"}
CHOOSING = "search"
COMPARING = "compare"
WITH_WORDS = ("lut", COMPARING)
VIEWING = "compile"
PLANNING = ("profile", "adapt")
VIEW_FILE = "supernet.html"


@dataclass(frozen=True, slots=True)
class Arguments:
    """One command as given."""

    command: str
    overrides: tuple[str, ...]
    json: Path | None
    multirun: bool
    config_folder: Path | None
    view: Path | bool  # True: `VIEW_FILE` in the output folder
    dry_run: bool
    words: tuple[str, ...] = ()  # of `lut`: the action and the names that it takes
    device: str | None = None
    question: Question | None = None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError("command line", message, next_step="see 'autotailor --help'")


def general_help() -> str:
    """Commands, groups with their options, flags and examples."""
    from flows.groups import config_groups

    width = max(map(len, COMMANDS)) + 2
    commands = "\n".join(f"  {name:{width}}{text}" for name, text in COMMANDS.items())
    width = max(map(len, LUT_ACTIONS)) + 2
    actions = "\n".join(f"  lut {form:{width}}{text}" for form, text in LUT_ACTIONS.items())
    groups = "\n".join(f"  {group:{width}}{', '.join(options)}" for group, options in config_groups().items())
    return (
        "usage: autotailor COMMAND [OVERRIDE…] [--json FILE] [--multirun] [--config-dir FOLDER]\n"
        "                          [--view [FILE]] [--dry-run]\n"
        "       autotailor search [OVERRIDE…] --budget-ms MS | --accuracy-share SHARE | --knee [--device NAME]\n"
        "       autotailor compare A B [OVERRIDE…] [--device NAME]\n\n"
        f"commands:\n{commands}\n\n"
        f"look-up tables (devices, operators and methods filter; store=FOLDER):\n{actions}\n\n"
        f"SubNets of {COMPARING}: {FORMS}\n\n"
        f"groups (GROUP=OPTION, device=[A,B], +preset=OPTION; values: GROUP.KEY=VALUE):\n{groups}\n\n"
        "flags:\n"
        f"  --budget-ms MS       {CHOOSING} only: the best SubNet within so many milliseconds\n"
        f"  --accuracy-share S   {CHOOSING} only: the fastest SubNet with at least this share of the base accuracy: 0.95\n"
        f"  --knee               {CHOOSING} only: the SubNet at the knee of the front\n"
        f"  --device NAME        {CHOOSING}, {COMPARING}: on this device alone\n"
        "  --json FILE          write the result as JSON\n"
        "  --multirun           run every combination of comma choices (KEY=a,b)\n"
        "  --config-dir FOLDER  more options for the groups, as in conf/: FOLDER/device/board.yaml\n"
        f"  --view [FILE.html]   {VIEWING} only: a page that shows the SuperNet; {VIEW_FILE} in the output folder\n"
        f"  --dry-run            {' and '.join(PLANNING)} only: what each device knows and how long the rest takes; "
        "measures nothing\n\n"
        f"{EXAMPLES}\n"
    )


def parse(argv: Sequence[str]) -> Arguments:
    """Arguments of every command but `agent`. UserError for an unknown command or flag."""
    from flows.groups import nearest

    command, rest = argv[0], argv[1:]
    if command not in COMMANDS:
        hint = nearest(command, COMMANDS) or "see 'autotailor --help'"
        raise UserError(f"command '{command}'", "is unknown", allowed=", ".join(COMMANDS), next_step=hint)
    parser = _Parser(prog=f"autotailor {command}", add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--multirun", "-m", action="store_true")
    parser.add_argument("--config-dir", type=Path)
    parser.add_argument("--view")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--device")
    parser.add_argument("--budget-ms")
    parser.add_argument("--accuracy-share")
    parser.add_argument("--knee", action="store_true")
    found = parser.parse_intermixed_args(_with_a_view_value(rest))
    view: Path | bool = found.view is not None and (Path(found.view) if found.view else True)
    words = tuple(word for word in found.overrides if "=" not in word) if command in WITH_WORDS else ()
    overrides = tuple(word for word in found.overrides if word not in words)
    question = _question(command, found, words, overrides)
    arguments = Arguments(
        command,
        overrides,
        found.json,
        found.multirun,
        found.config_dir,
        view,
        found.dry_run,
        words,
        found.device,
        question,
    )
    if command == "lut" and found.multirun:
        raise UserError("--multirun", "is not a flag of 'lut'", next_step="leave it out")
    _check_paths(arguments)
    _check_view(arguments)
    if arguments.dry_run and command not in PLANNING:
        raise UserError("--dry-run", f"is not a flag of '{command}'", allowed=f"with {', '.join(PLANNING)}")
    return arguments


def _question(
    command: str, found: argparse.Namespace, words: Sequence[str], overrides: Sequence[str]
) -> Question | None:
    """What is asked of a search. UserError for flags of another command, and values that cannot be."""
    given = {flag: getattr(found, name) for flag, name in RULES.items() if getattr(found, name) not in (None, False)}
    for flag in given:
        if command != CHOOSING:
            raise UserError(flag, f"is not a flag of '{command}'", allowed=f"with '{CHOOSING}'")
    if found.device is not None and command not in (CHOOSING, COMPARING):
        hint = "device=[NAME] chooses the devices of a run"
        allowed = f"with {CHOOSING}, {COMPARING}"
        raise UserError("--device", f"is not a flag of '{command}'", allowed=allowed, next_step=hint)
    if command == COMPARING:
        if len(words) != 2:
            form = f"autotailor {COMPARING} A B"
            raise UserError(COMPARING, f"got {len(words)} SubNets", allowed=f"two: {FORMS}", next_step=f"write {form}")
        for word in words:
            pick(word)
        return Question(pair=(words[0], words[1]))
    if not given:
        return None
    if len(given) > 1:
        raise UserError(" and ".join(given), "choose one SubNet each", next_step="leave all but one of them out")
    flag, text = next(iter(given.items()))
    rule = Rule(RULES[flag], 0.0 if flag == "--knee" else _number(flag, text))
    for option in ("search.budgets_ms", "search.device_budgets_ms"):
        if rule.kind == "budget_ms" and any(text.startswith(f"{option}=") for text in overrides):
            raise UserError("--budget-ms", f"is given beside {option}", next_step="leave one of them out")
    return Question(rule=rule)


def _number(flag: str, text: str) -> float:
    highest = 1.0 if flag == "--accuracy-share" else math.inf
    allowed = "a number above 0" + (" and up to 1, such as 0.95" if highest == 1.0 else "")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (0 < value <= highest and math.isfinite(value)):
        raise UserError(flag, f"got '{text}'", allowed=allowed)
    return value


def _with_a_view_value(words: Sequence[str]) -> list[str]:
    """`--view` alone gets an empty value, so that it does not take the override that follows it for its file."""
    found = []
    for position, word in enumerate(words):
        following = words[position + 1] if position + 1 < len(words) else ""
        alone = word == "--view" and (not following or following[0] in "-+~" or "=" in following)
        found.append(f"{word}=" if alone else word)
    return found


def _check_paths(arguments: Arguments) -> None:
    if arguments.config_folder and not arguments.config_folder.is_dir():
        raise UserError(
            "--config-dir",
            f"'{arguments.config_folder}' is not a folder",
            next_step="make it or leave it out",
        )
    if arguments.json:
        _check_file("--json", arguments.json)


def _check_file(flag: str, path: Path) -> None:
    if not path.resolve().parent.is_dir():
        raise UserError(flag, f"folder '{path.resolve().parent}' does not exist", next_step="make it first")
    if path.is_dir():
        raise UserError(flag, f"'{path}' is a folder", allowed="a file")


def _check_view(arguments: Arguments) -> None:
    if arguments.view is False:
        return
    if arguments.command != VIEWING:
        raise UserError("--view", f"is not a flag of '{arguments.command}'", allowed=f"with '{VIEWING}'")
    if arguments.multirun:
        raise UserError("--view", "shows one SuperNet, --multirun makes several", next_step="leave one of them out")
    if isinstance(arguments.view, Path):
        if arguments.view.suffix != ".html":
            raise UserError("--view", f"got '{arguments.view}'", allowed="a file that ends in .html")
        _check_file("--view", arguments.view)
