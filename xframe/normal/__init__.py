"""ONNX graphs in normal form: what they compute, without the ways in which exporters write it down."""
