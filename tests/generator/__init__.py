"""Random small networks in ONNX, rewrites that leave what they compute, and planted differences that do not."""
