"""ExecuTorch with the kernels of XNNPACK, and the times of its layers."""
