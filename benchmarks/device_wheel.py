"""The run time as a device installs it: built, installed from the package registry into fresh environments, and run there.

    python -m benchmarks.device_wheel [--extras onnxruntime ncnn] [--json FILE]

For each extra a virtual environment of its own gets the wheel, by `pip install --no-compile`. *Installed*: the files that pip
added to the environment (pip itself is not counted), with the bytecode that running wrote. *Compiled*: with the bytecode of all
files, as pip makes it without that option. *Direct*: the dependencies that the wheel names, that extra's among them. *Import*:
`import adaptive_runtime` in a new process, the fastest of five. *Foreign*: packages of the development that must not be
there. *Check*: `autotailor-runtime check` on a bundle, in a folder outside the repository (onnxruntime; the bundle of this
script has no files of ncnn). *Ready*: `autotailor-runtime serve` there, from its start until GET v2/health/ready answers 200.
*Deployed*: `autotailor deploy` into a folder of this machine, with the same packages and without a network (`deploy.wheels`),
until the service is ready. *aarch64*: whether the registry has wheels of all that is installed for that processor.

Bars: 250 MB with onnxruntime, 120 MB with ncnn, 12 direct dependencies, nothing foreign, check and service work.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from collections.abc import Callable, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tasks.deploy import Settings
from tasks.deploy import run as deploy
from tasks.deploy.deployment import build_wheel
from tasks.deploy.device_side.service import Service

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
        "ready_s": None,
        "deployed_s": None,
    }
    if extra == "onnxruntime":
        row["check"] = run(python.with_name("autotailor-runtime"), "check", bundle, cwd=folder).strip().splitlines()
        row["ready_s"] = serves(python.with_name("autotailor-runtime"), bundle, folder)
        row["deployed_s"] = deploys(wheel, extra, bundle, folder)
    row["installed_mb"] = (installed_bytes(folder / "venv") - before) / 1e6
    run(python, "-m", "compileall", "-qq", site, cwd=folder)
    row["compiled_mb"] = (installed_bytes(folder / "venv") - before) / 1e6
    return row


def serves(program: Path, bundle: Path, folder: Path) -> float:
    """Time until the service answers that it is ready [s]."""
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text("0123456789abcdef" * 4)
    command = [str(word) for word in (program, "serve", bundle, "--port", 0, "--token-file", token)]
    started = time.monotonic()
    with subprocess.Popen(command, cwd=folder, env=plain_environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip().removeprefix("service ready: ")
        headers = {"Authorization": f"Bearer {token.read_text()}"}
        with urllib.request.urlopen(urllib.request.Request(f"{address}/v2/health/ready", headers=headers)) as answer:
            assert answer.status == 200
        ready_s = time.monotonic() - started
        process.terminate()
    return ready_s


def deploys(wheel: Path, extra: str, bundle: Path, folder: Path) -> float:
    """Time of a whole deployment into a folder, without a network [s]."""
    wheels, place = folder / "wheels", folder / "deployed"
    python = folder / "venv" / "bin" / "python"
    run(python, "-m", "pip", "download", "--quiet", "-d", wheels, f"{wheel}[{extra}]", cwd=folder)
    settings = Settings(folder=str(place), wheel=wheel, wheels=wheels, port=0)
    started = time.monotonic()
    try:
        assert deploy(settings, "here", bundle, None)["address"] is not None
        return time.monotonic() - started
    finally:
        Service(str(place)).stop()


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
    from tests.support.ir.networks import small_net
    from tests.support.runtime.bundled import write_plain_bundle

    net = tailor_ir.compile(small_net(), torch.randn(1, 3, 16, 16), {"*.width_mult": [0.5, 1]})
    write_plain_bundle(net, [net.max_config, net.min_config], folder, samples=4)
    return folder


def keeps_bars(row: dict[str, Any]) -> bool:
    """Whether an installation keeps the bars."""
    small = row["installed_mb"] <= MOST_MB[row["extra"]] and len(row["direct"]) <= MOST_DIRECT
    return small and not row["foreign"]


def table_of(rows: Sequence[dict[str, Any]], title: str) -> Table:
    """A column for each extra."""
    table = Table("", *(row["extra"] for row in rows), title=title, title_justify="left")
    lines: dict[str, Callable[[dict[str, Any]], str]] = {
        "installed": lambda row: f"{row['installed_mb']:.0f} MB (most: {MOST_MB[row['extra']]})",
        "compiled": lambda row: f"{row['compiled_mb']:.0f} MB",
        "direct dependencies": lambda row: f"{len(row['direct'])} (most: {MOST_DIRECT})",
        "all packages": lambda row: str(len(row["all"])),
        "foreign": lambda row: ", ".join(row["foreign"]) or "none",
        "wheels for aarch64": lambda row: "all" if row["aarch64"] else "not all",
        "pip install": lambda row: f"{row['install_s']:.0f} s",
        "import": lambda row: f"{row['import_s']:.2f} s",
        "check": lambda row: "" if row["check"] is None else f"{len(row['check'])} answers right",
        "ready": lambda row: "" if row["ready_s"] is None else f"{row['ready_s']:.1f} s",
        "deployed": lambda row: "" if row["deployed_s"] is None else f"{row['deployed_s']:.0f} s",
    }
    for name, cell in lines.items():
        table.add_row(name, *map(cell, rows))
    return table


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
        wheel_mb = wheel.stat().st_size / 1e6
    Console(width=WIDTH).print(table_of(rows, f"{wheel.name}, {wheel_mb:.1f} MB"))
    kept = all(map(keeps_bars, rows))
    print("bars: kept" if kept else "bars: MISSED")
    if arguments.json:
        arguments.json.write_text(json.dumps({"wheel_mb": wheel_mb, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
