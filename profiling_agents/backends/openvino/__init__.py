"""OpenVINO on the CPU. `importing`, imported first, keeps OpenVINO from reporting each import to its vendor."""
