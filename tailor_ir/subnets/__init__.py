"""SubNets in every form: elastic with shared weights, stand-alone, as ONNX files, several at once."""
