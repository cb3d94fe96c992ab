"""No library and no runtime reports to its maker: every room imports this package before anything else.

Libraries read most of these settings when they are imported, so they are in the environment before. Child processes inherit
them. What a user has set stays (docs/security.md). For commands of others, `python -m importing` prints the settings.
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
    "SE_AVOID_STATS": "true",  # Selenium, of the tests
}
"""Variables that switch reports off, and the values that do so."""
MODULES = ("openvino_telemetry",)
"""Modules whose import is a report: OpenVINO and NNCF take it where it can be imported, and do without it elsewhere."""


def keep_quiet(environment: MutableMapping[str, str]) -> None:
    """Put the settings into an environment; those that have a value there keep it."""
    for name, value in SETTINGS.items():
        environment[name] = environment.get(name) or value


keep_quiet(os.environ)
for _module in MODULES:
    sys.modules.setdefault(_module, None)  # type: ignore[arg-type]
if "onnxruntime" in sys.modules and os.environ["ORT_DISABLE_TELEMETRY"] == SETTINGS["ORT_DISABLE_TELEMETRY"]:
    sys.modules["onnxruntime"].disable_telemetry_events()  # imported first, it has written its files: no more events
