"""Programs written for PyTorch Monarch, on meshbook. Here so far: the configuration that they know."""
