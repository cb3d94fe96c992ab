"""ONNX files as people have them, in one form: functions inlined, quantisation read as float32, one floating-point type."""
