"""`autotailor convert`: an .onnx file with fewer nodes and the same outputs."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from rich.table import Table

from flows.cli.arguments import Arguments
from flows.cli.terminal import Answer, Terminal
from flows.cli.words import MODEL_END
from profiling_agents.messages import MIB
from tasks.base.errors import UserError

FORM = f"autotailor convert IN{MODEL_END} OUT{MODEL_END}"


class ConvertConfig(BaseModel):
    """check: outputs are compared after each rule. seed: of the inputs for that. fewest: fewer nodes matter more than speed.

    inputs: a file of arrays in the place of random inputs.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    check: bool = True
    seed: int = Field(default=0, ge=0)
    fewest: bool = False
    inputs: Path | None = None


def check(arguments: Arguments) -> Arguments:
    """The arguments. UserError: not two files, the same file, or no folder for the output."""
    if len(arguments.words) != 2:
        raise UserError("convert", f"got {len(arguments.words)} files", allowed="two", next_step=f"write {FORM}")
    source, target = map(Path, arguments.words)
    if source.resolve() == target.resolve() or (source.exists() and target.exists() and source.samefile(target)):
        raise UserError("convert", f"'{target}' is read and written", next_step="name another file last")
    if target.suffix != MODEL_END:
        raise UserError("convert", f"got '{target}'", allowed=f"a file that ends in {MODEL_END}")
    if target.is_dir() or not target.resolve().parent.is_dir():
        reason = "is a folder" if target.is_dir() else "its folder does not exist"
        raise UserError("convert", f"'{target}': {reason}", next_step="name a file in a folder that exists")
    if arguments.json and arguments.json.resolve() in (source.resolve(), target.resolve()):
        raise UserError("--json", f"'{arguments.json}' is one of the models", next_step="name another file")
    return arguments


def execute(arguments: Arguments, config: ConvertConfig) -> Answer:
    """Convert, show the changes, and return them as JSON. UserError, TailorError for bad input."""
    import tailor_ir
    from tasks.base.artifacts import write_bytes

    source, target = map(Path, arguments.words)
    inputs = None if config.inputs is None else _arrays(config.inputs, config.check)
    found = tailor_ir.convert(source, check=config.check, seed=config.seed, fewest=config.fewest, inputs=inputs)
    try:
        write_bytes(target, found.model.SerializeToString())
    except OSError as error:
        raise UserError("convert", f"'{target}' cannot be written ({error.strerror})") from error
    plain = ("nodes_before", "nodes_after", "bytes_before", "bytes_after", "difference")
    answer = {
        "source": str(source),
        "file": str(target),
        **{name: getattr(found, name) for name in plain},
        "rules": [asdict(rule) for rule in found.rules],
        "undone": [asdict(rule) for rule in found.undone],
    }
    _show(answer, Terminal())
    return answer


def _arrays(file: Path, is_checked: bool) -> dict[str, np.ndarray]:
    """The arrays of a file by name. UserError: it cannot be read, or nothing is checked."""
    from tasks.data.unlabelled import ARRAYS, read_arrays

    if not is_checked:
        raise UserError("inputs", f"'{file}' with check=false", next_step="leave one out: inputs are for the check")
    if file.suffix not in ARRAYS:
        raise UserError("inputs", f"'{file}'", allowed=f"a file with {', '.join(ARRAYS)}")
    return read_arrays(file)


def _show(answer: Answer, terminal: Terminal) -> None:
    """Show a row for each rule, then both files."""
    table = Table("rule", title=f"{answer['source']} → {answer['file']}", title_justify="left")
    for column in ("times", "nodes fewer", "largest difference"):
        table.add_column(column, justify="right")
    for rule in answer["rules"]:
        table.add_row(rule["name"], str(rule["times"]), str(rule["nodes_fewer"]), _difference(rule["difference"]))
    terminal.show(table)
    terminal.say(f"nodes: {answer['nodes_before']} → {answer['nodes_after']}")
    terminal.say(f"size: {answer['bytes_before'] / MIB:.2f} → {answer['bytes_after'] / MIB:.2f} MiB")
    terminal.say(f"largest difference of an output: {_difference(answer['difference'])}")
    for rule in answer["undone"]:
        terminal.say(f"undone: {rule['name']} ({rule['reason']})")


def _difference(difference: float | None) -> str:
    return "not checked" if difference is None else f"{difference:.1e}" if difference else "0"
