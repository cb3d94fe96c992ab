"""Files that cross stages are read as they were written, or refused in one line."""

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tasks.base.errors import UserError
from tasks.base.schemas.exports import Exports
from tasks.base.schemas.placed import Operators, UniqueOperator
from tasks.base.schemas.stored import Predicted, Stored
from tasks.base.schemas.winners import Front, Hypervolume, Winner
from tests.support.damage import empty, flip, replace, truncate
from tests.support.docs.documents import ROOT


def schemas() -> list[type[Stored]]:
    """All schemas of files, in all of `tasks`."""
    for source in (ROOT / "tasks").rglob("*.py"):
        if re.search(r"\bStored\b", source.read_text(encoding="utf-8")):
            import_module(".".join(source.relative_to(ROOT).with_suffix("").parts))
    found = [schema for schema in _below(Stored) if hasattr(schema, "STAGE") and schema.__module__.startswith("tasks.")]
    return sorted(found, key=lambda schema: schema.__name__)


def _below(base: type[Stored]) -> set[type[Stored]]:
    return {each for child in base.__subclasses__() for each in {child, *_below(child)}}


SUBNET = {"digest": "0" * 16, "config": {"resolution": 24, "stage.1.width_mult": 0.5}, "predicted_ms": 1.5,
          "predicted_accuracy": 0.5, "predicted_score": 0.25, "macs": 3, "parameters": 2}  # fmt: skip


def front() -> Front:
    subnet = Predicted.model_validate(SUBNET)
    return Front(
        device="board",
        winners=(Winner(budget_ms=2.0, stopped="optimal", **SUBNET),),
        front=(subnet.digest,),
        fastest=subnet,
        largest=subnet,
        baseline=(),
        hypervolume=Hypervolume(value=0.0, reference_ms=1.0, reference_accuracy=0.0),
        evaluations=1,
        evaluated=0,
        whole_front=None,
        settings={"seed": 0},
    )


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    content = front().write(tmp_path / "front.json")
    assert json.loads((tmp_path / "front.json").read_text()) == content
    assert next(iter(content)) == "version"
    found = Front.read(tmp_path / "front.json")
    assert found.to_json() == content
    (winner,) = found.winners
    assert winner.config == SUBNET["config"]
    assert [type(choice) for choice in winner.config.values()] == [int, float]


def test_a_schema_of_another_form_has_its_version_from_the_beginning(tmp_path: Path) -> None:
    class Changed(Stored):
        STAGE = "search"

        version: int = 2
        name: str

    made = Changed(name="board")
    assert made.version == Changed.present_version() == 2
    assert made.write(tmp_path / "changed.json") == {"version": 2, "name": "board"}
    assert Changed.read(tmp_path / "changed.json") == made
    with pytest.raises(UserError, match=r"has version 1; allowed: 2; run the search stage again"):
        Changed.of_json({"version": 1, "name": "board"}, "file")
    assert Exports.present_version() == 2


def test_what_the_writer_leaves_out_is_not_in_the_file() -> None:
    (row,) = front().to_json()["winners"]
    assert row == {**SUBNET, "budget_ms": 2.0, "stopped": "optimal"}


@pytest.mark.parametrize(
    ("version", "line"),
    [
        (2, r"^operators '.*': has version 2, of a later autotailor; allowed: 1; update autotailor$"),
        (0, r"^operators '.*': has version 0; allowed: 1; run the enumerate stage again: autotailor enumerate …$"),
        (None, r"^operators '.*': has no version; allowed: 1; run the enumerate stage again"),
        ("1", r"^operators '.*': has version 1; allowed: 1; run the enumerate stage again"),
    ],
)
def test_another_version_is_refused_in_one_line(version: Any, line: str, tmp_path: Path) -> None:
    content = {"version": version, "operators": []} if version is not None else {"operators": []}
    (tmp_path / "operators.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=line):
        Operators.read(tmp_path / "operators.json")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"more": 1}, r"more: Extra inputs are not permitted"),
        ({"winners": [{"digest": "a"}]}, r"winners\.0\.config: Field required"),
        ({"evaluations": "many"}, r"evaluations: Input should be a valid integer"),
        ({"hypervolume": {"value": float("nan"), "reference_ms": 1, "reference_accuracy": 0}}, r"finite number"),
    ],
)
def test_another_content_is_refused_by_its_field(change: dict[str, Any], line: str, tmp_path: Path) -> None:
    (tmp_path / "front.json").write_text(json.dumps({**front().to_json(), **change}))
    with pytest.raises(UserError, match=rf"^front '.*front\.json': .*{line}.*; run the search stage again"):
        Front.read(tmp_path / "front.json")


@pytest.mark.parametrize("damage", [flip, truncate, empty, replace])
@pytest.mark.parametrize("schema", schemas())
def test_no_file_is_a_traceback(schema: type[Stored], damage: Any, tmp_path: Path) -> None:
    file = tmp_path / "some.json"
    file.write_text(json.dumps({"version": 1, "of": [1, 2, 3]}))
    damage(file)
    again = r"run the \w+ stage again: autotailor \w.* …"
    with pytest.raises(UserError, match=rf"^[\w ]+ '{file}': .*; {again}$"):
        schema.read(file)
    with pytest.raises(UserError, match=rf"cannot be read \(No such file or directory\); {again}$"):
        schema.read(tmp_path / "none.json")


def test_every_schema_is_found() -> None:
    names = {schema.__name__ for schema in schemas()}
    assert {"Front", "Exports", "ExportIndex", "ChosenSubNet", "LatencyFile", "EnergyFile", "GivenSuperNet"} <= names
    assert "Result" not in names


def test_an_operator_has_a_witness(tmp_path: Path) -> None:
    one = UniqueOperator(digest="a", feature={"operator": "Conv"}, witness={"resolution": 24})
    Operators(operators=(one,)).write(tmp_path / "operators.json")
    assert Operators.read(tmp_path / "operators.json").operators == (one,)
