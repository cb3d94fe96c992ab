"""`autotailor deploy`: the command line, and the flow."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tailor_ir import SuperNet
from tests.support.deploy.deployments import current, write_bundle


def test_the_bundle_of_the_latest_run_is_deployed(tmp_path: Path, net: SuperNet, wheel: Path) -> None:
    write_bundle(net, tmp_path / "outputs" / "exports" / "onnxruntime" / "bundle")
    settings = {"folder": tmp_path / "there", "wheel": wheel, "install": "unpack", "python": sys.executable}
    words = [f"deploy.{name}={value}" for name, value in settings.items()]
    words += ["deploy.start=false", f"output_dir={tmp_path / 'outputs'}", "--json", str(tmp_path / "found.json")]
    command = [sys.executable, "-P", "-m", "flows.cli", "deploy", "onnxruntime", *words]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment["XDG_CACHE_HOME"] = str(tmp_path)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["release"] == current(tmp_path / "there")
    assert f"release {found['release']} in '{tmp_path / 'there'}' of 'onnxruntime'" in done.stdout
