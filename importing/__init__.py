"""Disable telemetry of libraries and runtimes: every package of the project loads this one before anything else.

Libraries read most of these settings on loading, so they must be in the environment before. Child processes inherit them.
Values set by the user are kept (docs/security.md). For external commands, `python -m importing` prints the settings.
"""

import os
import sys
from collections.abc import MutableMapping

SETTINGS = {
    "DO_NOT_TRACK": "1",  # Prefect's client, huggingface_hub
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "ORT_DISABLE_TELEMETRY": "1",  # ONNX Runtime from 1.31 on: a device id and a database of events in the user's cache
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "SE_AVOID_STATS": "true",  # Selenium, which the tests use
}
"""Variables that switch telemetry off, with their values."""
MODULES = ("openvino_telemetry",)
"""Modules that send reports when loaded: OpenVINO and NNCF use this one if it is available, and work without it."""


def keep_quiet(environment: MutableMapping[str, str]) -> None:
    """Put the settings into an environment; existing values are kept."""
    for name, value in SETTINGS.items():
        environment[name] = environment.get(name) or value


keep_quiet(os.environ)
for _module in MODULES:
    sys.modules.setdefault(_module, None)  # type: ignore[arg-type]
if "onnxruntime" in sys.modules and os.environ["ORT_DISABLE_TELEMETRY"] == SETTINGS["ORT_DISABLE_TELEMETRY"]:
    sys.modules["onnxruntime"].disable_telemetry_events()  # it has written its files if loaded first: no more events
