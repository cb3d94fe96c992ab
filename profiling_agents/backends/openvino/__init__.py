"""OpenVINO on the CPU. Nothing in this package may import it before this module has run.

Importing OpenVINO tells its maker so over the network, wherever `openvino_telemetry` can be imported. It cannot be imported
in the process that imports this package.
"""

import sys

sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
