"""Networks that come as graphs: ONNX, Keras and torch.export files."""
