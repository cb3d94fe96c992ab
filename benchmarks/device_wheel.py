"""The run time as a device installs it: built, installed from the package registry into fresh environments, and run there.

    python -m benchmarks.device_wheel [--extras onnxruntime ncnn] [--json FILE]

For each extra a virtual environment of its own gets the wheel, by `pip install --no-compile`. *Installed*: the files that pip
added to the environment (pip itself is not counted), with the bytecode that running wrote. *Compiled*: with the bytecode of all
files, as pip makes it without that option. *Direct*: the dependencies that the wheel names, that extra's among them. *Import*:
`import adaptive_runtime` in a new process, the fastest of five. *Foreign*: packages of the development that must not be
there. *Check*: `autotailor-runtime check` on a bundle, in a folder outside the repository (onnxruntime; the bundle of this
script has no files of ncnn). *aarch64*: whether the registry has wheels of all that is installed for that processor.

Bars: 250 MB with onnxruntime, 120 MB with ncnn, 12 direct dependencies, nothing foreign, the check passes.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import venv
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tasks.deploy.wheel import build_wheel

MOST_MB = {"onnxruntime": 250, "ncnn": 120}
MOST_DIRECT = 12
FOREIGN = ("torch", "prefect", "mlflow", "onnx", "scipy", "pandas", "hydra-core", "sympy")
AARCH64 = ("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
RUNS = 5
WIDTH = 120


def plain_environment() -> dict[str, str]:
    """This process's environment without what leads to the repository."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def run(*command: str | Path, cwd: Path) -> str:
    """The output of a program that must succeed."""
    done = subprocess.run(command, cwd=cwd, env=plain_environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed: {done.stderr.strip()}")
    return done.stdout


def installed_bytes(folder: Path) -> int:
    """Size of all files of a folder."""
    return sum(file.lstat().st_size for file in folder.rglob("*") if not file.is_dir())


def direct(wheel: Path, site: Path, extra: str) -> list[str]:
    """The dependencies that the wheel names, with those of an extra."""
    (own,) = [one for one in distributions(path=[str(site)]) if one.name == wheel.name.split("-")[0].replace("_", "-")]
    named = [line.partition(";") for line in own.requires or ()]
    return [re.split(r"[<>=!~ \[]", name)[0] for name, _, when in named if not when or f"'{extra}'" in when]


def installed(wheel: Path, extra: str, folder: Path, bundle: Path) -> dict[str, Any]:
    """Install into a fresh environment, and measure."""
    started = time.monotonic()
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    (site,) = (folder / "venv" / "lib").glob("python3.*/site-packages")
    before = installed_bytes(folder / "venv")
    run(python, "-m", "pip", "install", "--quiet", "--no-compile", f"{wheel}[{extra}]", cwd=folder)
    install_s = time.monotonic() - started
    names = {one.name.lower() for one in distributions(path=[str(site)])}
    timed = [sys.maxsize / 1.0]
    for _ in range(RUNS):
        at = time.perf_counter()
        run(python, "-I", "-c", "import adaptive_runtime", cwd=folder)
        timed.append(time.perf_counter() - at)
    row: dict[str, Any] = {
        "extra": extra,
        "direct": direct(wheel, site, extra),
        "all": sorted(names - {"pip", "setuptools"}),
        "foreign": sorted(names.intersection(FOREIGN)),
        "import_s": min(timed),
        "install_s": install_s,
        "aarch64": aarch64(wheel, extra, folder),
        "check": None,
    }
    if extra == "onnxruntime":
        row["check"] = run(python.with_name("autotailor-runtime"), "check", bundle, cwd=folder).strip().splitlines()
    row["installed_mb"] = (installed_bytes(folder / "venv") - before) / 1e6
    run(python, "-m", "compileall", "-qq", site, cwd=folder)
    row["compiled_mb"] = (installed_bytes(folder / "venv") - before) / 1e6
    return row


def aarch64(wheel: Path, extra: str, folder: Path) -> bool:
    """Whether pip finds a wheel of each package for aarch64."""
    command = [str(folder / "venv" / "bin" / "python"), "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
    platforms = [word for platform in AARCH64 for word in ("--platform", platform)]
    command += [*platforms, "-d", str(folder / "aarch64"), f"{wheel}[{extra}]"]
    done = subprocess.run(command, cwd=folder, env=plain_environment(), capture_output=True, check=False)
    return done.returncode == 0


def write_bundle(folder: Path) -> Path:
    """A small bundle with a calibration sample."""
    import torch

    import tailor_ir
    from tests.ir.networks import small_net
    from tests.runtime.bundled import write_plain_bundle

    net = tailor_ir.compile(small_net(), torch.randn(1, 3, 16, 16), {"*.width_mult": [0.5, 1]})
    write_plain_bundle(net, [net.max_config, net.min_config], folder, samples=4)
    return folder


def main() -> int:
    """Measure and print. Exit code 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--extras", nargs="+", choices=sorted(MOST_MB), default=list(MOST_MB))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel, bundle = build_wheel(folder), write_bundle(folder / "bundle")
        rows = []
        for extra in arguments.extras:
            (folder / extra).mkdir()
            rows.append(installed(wheel, extra, folder / extra, bundle))
        wheel_kb = wheel.stat().st_size / 1e3
    table = Table(title=f"{wheel.name}, {wheel_kb:.0f} kB", title_justify="left")
    for column in (
        "extra",
        "installed",
        "compiled",
        "direct",
        "all",
        "foreign",
        "import",
        "install",
        "aarch64",
        "check",
    ):
        table.add_column(column)
    kept = True
    for row in rows:
        kept &= row["installed_mb"] <= MOST_MB[row["extra"]] and len(row["direct"]) <= MOST_DIRECT
        kept &= not row["foreign"]
        table.add_row(
            row["extra"],
            f"{row['installed_mb']:.0f} MB",
            f"{row['compiled_mb']:.0f} MB",
            str(len(row["direct"])),
            str(len(row["all"])),
            ", ".join(row["foreign"]) or "none",
            f"{row['import_s']:.2f} s",
            f"{row['install_s']:.0f} s",
            "yes" if row["aarch64"] else "no",
            "" if row["check"] is None else f"{len(row['check'])} answers right",
        )
    Console(width=WIDTH).print(table)
    print("bars: kept" if kept else "bars: MISSED")
    if arguments.json:
        arguments.json.write_text(json.dumps({"wheel_kb": wheel_kb, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
