"""The host programs of the documents follow an exported chain: they leave where the runner on the device leaves."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.tables import chain_programs, ncnn_library
from tests.support.tables.chain_programs import check, run, shown

exported = chain_programs.exported


def test_the_program_in_cpp_compiles_and_leaves_where_the_runner_leaves(
    exported: tuple[Path, np.ndarray], tmp_path: Path
) -> None:
    try:
        flags = ncnn_library.flags()
    except ncnn_library.NotThereError as reason:
        pytest.skip(str(reason))
    source, program = tmp_path / "host.cpp", tmp_path / "host"
    source.write_text(shown("cpp", "// host.cpp"))
    run(["g++", "-O1", "-Wall", "-Werror", str(source), "-o", str(program), *flags])
    folder, images = exported
    check([str(program)], ["16", "3"], folder / "ncnn.segments", images, tmp_path)
