"""The manifest says how a file runs, and the programs beside it run it so: they give the outputs that were checked."""

from pathlib import Path

import pytest

from tests.support.tables import export_examples, ncnn_library
from tests.support.tables.export_examples import TOLERANCE, Exported, run_program

backend = export_examples.backend
exported = export_examples.exported


@pytest.fixture(scope="session")
def ncnn_flags() -> list[str]:
    """What g++ needs to find ncnn, which is built where it is not installed."""
    try:
        return ncnn_library.flags()
    except ncnn_library.NotThereError as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("backend", ["ncnn"], indirect=True)
@pytest.mark.parametrize("name", ["ncnn", "ncnn_fp16"])
def test_the_cpp_example_of_ncnn_compiles_and_gives_the_outputs_that_were_checked(
    exported: Exported, name: str, ncnn_flags: list[str], tmp_path: Path
) -> None:
    (source,) = (example for example in exported.card.files[name].examples if example.endswith(".cpp"))
    program = tmp_path / "run"
    run_program(["g++", "-Wall", "-Werror", source, "-o", str(program), *ncnn_flags], exported.folder)
    model = source.removesuffix(".cpp")
    output = run_program([str(program), model, "x.f32"], exported.folder)
    assert exported.difference(output) <= (2e-2 if name == "ncnn_fp16" else TOLERANCE["fp32"])
    assert run_program([str(program), model], exported.folder) != output
