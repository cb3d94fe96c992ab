"""The host programs of the documents follow an exported chain: they leave where the runner on the device leaves."""

import sys
from pathlib import Path

import numpy as np

from adaptive_runtime.bundle.chains import SEGMENTS_FILE, ChainManifest
from tests.support.tables import chain_programs
from tests.support.tables.chain_programs import check, shown

exported = chain_programs.exported


def test_the_program_in_python_leaves_where_the_runner_leaves(
    exported: tuple[Path, np.ndarray], tmp_path: Path
) -> None:
    (tmp_path / "host.py").write_text(shown("python", "# host.py"))
    folder, images = exported
    check([sys.executable, "-I", str(tmp_path / "host.py")], [], folder / "onnx.segments", images, tmp_path)


def test_programs_are_short() -> None:
    for language, first_line in (("python", "# host.py"), ("cpp", "// host.cpp")):
        lines = [line for line in shown(language, first_line).splitlines() if line.strip()]
        assert len(lines) <= 36, len(lines)


def test_the_manifest_beside_them_is_that_of_three_exits(exported: tuple[Path, np.ndarray]) -> None:
    for name in ("onnx", "ncnn"):
        assert len(ChainManifest.read(exported[0] / f"{name}.segments" / SEGMENTS_FILE).exits) == 3
