"""The Jupyter kernel: the controller of a mesh, and the features that need a kernel of our own."""
