"""The packages that are independent of Jupyter: nodes, actors, meshes, hosts; only `runtime.cells` uses IPython."""
