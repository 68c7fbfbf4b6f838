"""The Jupyter kernel: the controller of a mesh, and what only a kernel can do."""
