"""The engine of a device: the chosen options of its runtime, and their gain."""

from pathlib import Path

from tasks.base.pages.text import percent
from tasks.measuring.runtime_options.chosen import ENGINE_FILE, ChosenEngine
from tasks.report.looks import Row


def chosen_engine(folder: Path | None) -> Row | None:
    """Content of the folder with `engine.json`; None without one. `text`: for people; `tried`: the choices that were timed."""
    if folder is None:
        return None
    found = ChosenEngine.read(folder / ENGINE_FILE)
    return {
        "text": found.text,
        "note": _note(found),
        "speed_up": found.speed_up,
        "chosen": found.chosen,
        "fixed": found.fixed,
        "gain": found.gain and found.gain.to_json(),
        "tried": [one.to_json() for one in found.tried],
        "left_out": [one.to_json() for one in found.left_out],
        "subnets": [one.to_json() for one in found.subnets],
        "measured_s": found.measured_s,
    }


def _note(found: ChosenEngine) -> str:
    """The engine and its gain in a line."""
    if found.gain is None and not found.tried:
        return f"{found.text}: no other choice was timed"
    if found.gain is None:
        return f"{found.text}: none of {len(found.tried)} choices that were timed gains enough"
    times = f"the geometric mean of {len(found.subnets)} SubNets, {found.gain.pairs} pairs"
    if found.gain.low is None or found.gain.high is None:
        return f"{found.text} instead of the runtime's defaults; {times}"
    least, most = 1 / found.gain.high, 1 / found.gain.low
    return f"{found.text} instead of the runtime's defaults; {times}, 95 % within {least:.2f} and {most:.2f}"


def card(device: Row) -> list[dict[str, str]]:
    """The card of the headline: the part of the speed that comes from the engine alone."""
    found = device["engine"]
    if found is None:
        return []
    name = device["name"]
    return [{"label": f"{name}: engine", "value": f"{found['speed_up']:.2f} ×", "note": found["note"], "device": name}]


def rows(found: Row) -> list[tuple[str, str, str, str]]:
    """A row for each tried choice: the choice, the time with it over the time without, its interval, the decision."""
    shown = []
    for one in found["tried"]:
        gain = one["gain"]
        interval = "–" if gain["low"] is None else f"{percent(gain['low'])} to {percent(gain['high'])}"
        beside = ", ".join(f"{name}={choice}" for name, choice in one["beside"].items())
        choice = f"{one['option']}={one['choice']}" + (f" beside {beside}" if beside else "")
        shown.append((choice, percent(gain["ratio"]), interval, one["reason"] or "kept"))
    left_out = [(f"{one['option']}={one['choice']}", "–", "–", one["reason"]) for one in found["left_out"]]
    return [*shown, *left_out]
