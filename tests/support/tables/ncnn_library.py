"""ncnn's C++ library: the installed one, else one that is built once from ncnn's source archive, with portable kernels alone.

The Python package has neither headers nor a library to link. The source archive is that of the same version, which pip finds;
the library lies in the user's cache folder. By hand: `python -m tests.support.tables.ncnn_library`.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

LAYERS = (
    *(
        "BinaryOp",
        "Cast",
        "Clip",
        "Concat",
        "Convolution",
        "ConvolutionDepthWise",
        "Flatten",
        "HardSigmoid",
        "HardSwish",
    ),
    *("InnerProduct", "Input", "MemoryData", "Packing", "Padding", "Pooling", "Quantize", "Dequantize", "Requantize"),
    *("Reduction", "ReLU", "Reshape", "Sigmoid", "Slice", "Softmax", "Split", "Swish", "UnaryOp"),
)
SWITCHED_OFF = (
    *("BUILD_BENCHMARK", "BUILD_EXAMPLES", "BUILD_TESTS", "BUILD_TOOLS", "PYTHON", "RUNTIME_CPU", "SIMPLEVK", "VULKAN"),
    *("PIXEL", "PIXEL_AFFINE", "PIXEL_DRAWING", "PIXEL_ROTATE"),
)
BUILD_LIMIT_S = 400.0
LOOK_UP_LIMIT_S = 60.0


class NotThereError(Exception):
    """No library, and why none could be built."""


def flags() -> list[str]:
    """What g++ needs besides a source file. NotThereError without a library."""
    for tool in ("g++", "cmake", "make"):
        if shutil.which(tool) is None:
            raise NotThereError(f"no {tool} here")
    if shutil.which("pkg-config") and _succeeds(["pkg-config", "--exists", "ncnn"]):
        found = subprocess.run(["pkg-config", "--cflags", "--libs", "ncnn"], capture_output=True, text=True, check=True)
        return [*found.stdout.split(), "-fopenmp"]
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "autotailor"
    folder = cache / f"ncnn-{version('ncnn')}"
    if not (folder / "lib" / "libncnn.a").is_file():
        _build(folder)
    return [f"-I{folder}/include", f"{folder}/lib/libncnn.a", "-fopenmp", "-lpthread"]


def _build(folder: Path) -> None:
    """Fetch and build into `folder`, which is there whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        source = _source(Path(scratch))
        made = Path(scratch) / "made"
        declared = re.findall(r"ncnn_add_layer\((\w+)", (source / "src" / "CMakeLists.txt").read_text())
        left_out = [f"-DWITH_LAYER_{name.lower()}=OFF" for name in declared if name not in LAYERS]
        switched_off = [f"-DNCNN_{name}=OFF" for name in SWITCHED_OFF]
        # a processor for which ncnn has no kernels of its own: the portable ones take a third of the time to build
        portable = ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=s390x"]
        kind = ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O1", f"-DCMAKE_INSTALL_PREFIX={made}"]
        work = Path(scratch) / "work"
        _run(["cmake", "-S", str(source), "-B", str(work), *portable, *kind, *switched_off, *left_out])
        _run(["cmake", "--build", str(work), "-j", "2"])
        _run(["cmake", "--install", str(work)])
        made.rename(folder)


def _source(folder: Path) -> Path:
    """The unpacked source archive of the installed version."""
    wanted = version("ncnn")
    look = [sys.executable, "-m", "pip", "index", "versions", "ncnn", "--no-binary", ":all:", "-vv"]
    try:
        found = subprocess.run(look, capture_output=True, text=True, check=False, timeout=LOOK_UP_LIMIT_S).stdout
        link = re.search(rf"Found link (\S+/ncnn-{re.escape(wanted)}\.tar\.gz)", found)
        if link is None:
            raise NotThereError(f"pip finds no source archive of ncnn {wanted}")
        archive = folder / "ncnn.tar.gz"
        with urllib.request.urlopen(link[1], timeout=LOOK_UP_LIMIT_S) as stream:
            archive.write_bytes(stream.read())
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotThereError(f"the source archive of ncnn {wanted} cannot be had: {error}") from error
    with tarfile.open(archive) as stored:
        stored.extractall(folder, filter="data")
    return folder / f"ncnn-{wanted}"


def _succeeds(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BUILD_LIMIT_S)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no reason told"]
        raise NotThereError(f"ncnn cannot be built: {lines[-1]}")


if __name__ == "__main__":
    print(*flags())
