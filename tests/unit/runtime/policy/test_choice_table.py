from pathlib import Path

import pytest
from hypothesis import given

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.policy import VariantTable
from tests.support.runtime.variants import tables

TEXT = VariantTable(names=("a", "b"), accuracy=(0.5, 0.75), latency_ms=(1.0, 2.0)).to_json()


@given(tables())
def test_a_table_is_the_same_after_it_was_a_file(table: VariantTable) -> None:
    assert VariantTable.from_json(table.to_json()) == table


def test_a_file_is_written_whole_and_read_again(tmp_path: Path) -> None:
    file = tmp_path / "variants.json"
    VariantTable.from_json(TEXT).write(file)
    assert file.read_text() == TEXT
    assert VariantTable.read(file).to_json() == TEXT
    assert [path.name for path in tmp_path.iterdir()] == ["variants.json"]


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        ("[1.0,2.0]", "[1.0]", "latency_ms has 1 values for 2 variants"),
        ("[1.0,2.0]", "[1.0,-2.0]", "latency_ms.1: Input should be greater than 0"),
        ("[1.0,2.0]", "[1.0,NaN]", "latency_ms.1: .*finite"),
        ("0.75", "1.75", "accuracy.1: .*less than or equal to 1"),
        ('"b"', '"a"', "two variants have one name"),
        ('"version":1', '"version":2', "version: "),
        ("}", "", "Invalid JSON"),
        ('"names"', '"titles"', "names: Field required"),
    ],
)
def test_damage_is_one_clear_line(before: str, after: str, line: str, tmp_path: Path) -> None:
    file = tmp_path / "variants.json"
    file.write_text(TEXT.replace(before, after))
    with pytest.raises(AdaptiveError, match=rf"variants\.json: .*{line}.*; make the table again$") as error:
        VariantTable.read(file)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        AdaptiveError, match=r"none\.json: cannot be read \(No such file or directory\); make the table again$"
    ):
        VariantTable.read(tmp_path / "none.json")
