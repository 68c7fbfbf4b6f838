"""The tensor engine: distributed tensors that a controller uses like local ones."""
