"""OpenVINO on the CPU. `quiet_libraries`, which this room imports first, keeps it from telling its maker of each import."""
