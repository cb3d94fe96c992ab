"""Bring ONNX files into one form: functions inlined, quantisation read as float32, one floating-point type."""
