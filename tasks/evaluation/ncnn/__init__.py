"""NCNN files: written by pnnx from ONNX, many operators per call, and read layer by layer."""
