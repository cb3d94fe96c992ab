"""OpenVINO on the CPU. `importing`, which this room imports first, keeps it from telling its maker of each import."""
