"""NCNN's files: written by pnnx from ONNX, many operators in one call, and read layer by layer."""
