"""`autotailor lut`: show, compare, export, merge and compact the look-up tables of a store."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict
from rich.markup import escape
from rich.table import Table

from flows.cli.arguments import Arguments
from flows.cli.terminal import Answer, Terminal, age
from flows.storage import SIGN, OutputPlace, is_shared, local_folder
from flows.storage.mirror import shared_tables
from flows.storage.objects import open_objects
from tasks.base.errors import UserError
from tasks.measuring.lut import LutStore, ProfilingMethod
from tasks.measuring.lut.entry import Row, device_of
from tasks.measuring.lut.views import Filter, diff, export, show

FAILURES_SHOWN = 10
COUNTS = {"entries": "entries", "failed": "failed", "noisy": "noisy"}
"""Keys of the counts, and their column names."""
ENERGY = {"with_energy": "energy"}
"""A further column, shown if some entry has an energy."""


class LutConfig(BaseModel):
    """The folder of the tables, and a filter of entries (empty: all)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    output_dir: OutputPlace = Path("outputs")
    store: OutputPlace = Path("outputs/luts")
    """Folder of the look-up tables."""
    devices: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    methods: tuple[ProfilingMethod, ...] = ()

    @property
    def filter(self) -> Filter:
        """The filter of entries."""
        return Filter(devices=self.devices, operators=self.operators, methods=self.methods)


def execute(arguments: Arguments, config: LutConfig) -> Answer:
    """Execute the action, show its result, and return it as JSON. UserError for bad input."""
    action, *words = arguments.words
    return ACTIONS[action](config, tuple(words), Terminal())


def _show(config: LutConfig, words: tuple[str, ...], terminal: Terminal) -> Answer:
    tables: Sequence[Answer] = show(config.filter.apply(_store_here(config.store).rows()))
    overview = Table("device", "method", title=escape(f"look-up tables in {config.store}"), title_justify="left")
    columns = COUNTS | (ENERGY if any(one["with_energy"] for one in tables) else {})
    for column in ("batch", *columns.values(), "age"):
        overview.add_column(column, justify="right")
    for one in tables:
        batches = ", ".join(map(str, one["batches"])) or "–"
        counts = (str(one[key]) for key in columns)
        moments = (datetime.fromisoformat(one[key]) for key in ("newest", "oldest"))
        ages = dict.fromkeys(age((datetime.now(UTC) - moment).total_seconds()) for moment in moments)
        device = f"{escape(one['device'])}\n[dim]{escape(one['description'])}[/]"
        overview.add_row(device, one["method"], batches, *counts, " – ".join(ages))
    terminal.show(overview)
    if len(tables) == 1:
        _show_operators(tables[0], terminal)
    return {"store": str(config.store), "tables": tables}


def _show_operators(one: Answer, terminal: Terminal) -> None:
    table = Table("operator", title=escape(one["device"]), title_justify="left")
    columns = COUNTS | (ENERGY if one["with_energy"] else {})
    for column in (*columns.values(), "median spread"):
        table.add_column(column, justify="right")
    for operator, counts in sorted(one["operators"].items(), key=lambda item: -item[1]["entries"]):
        spread = "–" if counts["median_spread"] is None else f"{100 * counts['median_spread']:.1f} %"
        table.add_row(escape(operator), *(str(counts[key]) for key in columns), spread)
    terminal.show(table)
    lines = [f"not valid: {text}" for text in one["invalid"]]
    lines += [f"failed: {row['operator']} {row['digest']}: {row['reason']}" for row in one["failures"]]
    for line in lines[:FAILURES_SHOWN]:
        terminal.say(line)
    if len(lines) > FAILURES_SHOWN:
        terminal.say(f"… and {len(lines) - FAILURES_SHOWN} more (--json FILE has them all)")


def _diff(config: LutConfig, words: tuple[str, ...], terminal: Terminal) -> Answer:
    first, second = (config.filter.apply(_table(config.store, word)) for word in words)
    result: Answer = diff(first, second)
    title = f"{result['devices'][1]} relative to {result['devices'][0]}"
    table = Table("operator", title=escape(title), title_justify="left")
    for column in ("shared", "median", "lowest", "highest"):
        table.add_column(column, justify="right")
    table.add_column("worst")
    for operator, ratios in (*result["operators"].items(), ("all", result["all"])):
        numbers = (f"{ratios[key]:.2f}" for key in ("median_ratio", "lowest_ratio", "highest_ratio"))
        table.add_row(escape(operator), str(ratios["shared"]), *numbers, escape(_worst(ratios["worst"], operator)))
    terminal.show(table)
    for key, text in (
        ("only_first", f"only {result['devices'][0]} has"),
        ("only_second", f"only {result['devices'][1]} has"),
        ("failed_first", f"failed on {result['devices'][0]} only"),
        ("failed_second", f"failed on {result['devices'][1]} only"),
    ):
        if result[key]:
            terminal.say(f"{text}: " + ", ".join(f"{count} {name}" for name, count in result[key].items()))
    return result


def _worst(worst: Answer, row: str) -> str:
    name = "" if worst["operator"] == row else f"{worst['operator']} "
    shape = "×".join(map(str, worst["input_shapes"][0])) if worst["input_shapes"] else worst["digest"]
    before_ms, after_ms = worst["p50_ms"]
    return f"{name}{shape}: {before_ms:.3g} → {after_ms:.3g} ms"


def _table(store: Path | str, word: str) -> list[Row]:
    """Valid entries of the one table in `store` whose name contains `word`, or of the folder of that name."""
    folder = LutStore(Path(word))
    rows = folder.valid_rows() if folder.folders() else _store_here(store).valid_rows()
    names = sorted({device_of(row).name for row in rows})
    found = names if folder.folders() else [name for name in names if word == name] or [n for n in names if word in n]
    if len(found) != 1:
        got = f"'{word}' stands for {len(found)} tables"
        raise UserError("lut diff", got, allowed=", ".join(names), next_step="name one")
    return [row for row in rows if device_of(row).name == found[0]]


def _export(config: LutConfig, words: tuple[str, ...], terminal: Terminal) -> Answer:
    file = Path(words[0])
    if file.suffix != ".csv":
        raise UserError("lut export", f"got '{file}'", allowed="a file that ends in .csv")
    rows = config.filter.apply(_store_here(config.store).rows())
    export(rows, file)
    terminal.say(f"{len(rows)} entries: {file}")
    return {"store": str(config.store), "file": str(file), "entries": len(rows)}


def _merge(config: LutConfig, words: tuple[str, ...], terminal: Terminal) -> Answer:
    for word in words:
        if SIGN in word:
            hint = "a run brings its own tables to output_dir=URL"
            raise UserError("lut merge", f"got '{word}'", allowed="folders", next_step=hint)
    *sources, target = (Path(word) for word in words)
    if any(source.resolve() == target.resolve() for source in sources):
        raise UserError("lut merge", f"'{target}' is a source and where it goes", next_step="name another folder last")
    added = LutStore(target).merge([LutStore(source) for source in sources])
    for name, entries in added.items():
        terminal.say(f"{name}: {entries} entries added")
    if not added:
        terminal.say("nothing is new")
    return {"store": str(target), "added": added}


def _compact(config: LutConfig, words: tuple[str, ...], terminal: Terminal) -> Answer:
    if is_shared(config.store):
        got = f"parts at '{config.store}' are never rewritten, since other machines have them"
        raise UserError("lut compact", got, allowed="a folder")
    store = _store_here(config.store)
    store.rows()  # raises for a folder without tables
    tables = []
    for name, before, entries in store.compact():
        terminal.say(f"{name}: {before} parts are 1, {entries} entries")
        tables.append({"device": name, "parts_before": before, "entries": entries})
    return {"store": str(config.store), "tables": tables}


def _store_here(place: Path | str) -> LutStore:
    """A store of tables; for a URL, a local copy of its current content. UserError if the URL cannot be reached."""
    if is_shared(place):
        shared_tables(open_objects(str(place)), "", local_folder(place)).fetch()
    return LutStore(local_folder(place))


ACTIONS: dict[str, Callable[[LutConfig, tuple[str, ...], Terminal], Answer]] = {
    "show": _show,
    "diff": _diff,
    "export": _export,
    "merge": _merge,
    "compact": _compact,
}
