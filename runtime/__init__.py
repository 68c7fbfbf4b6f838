"""All that knows nothing of Jupyter: nodes, actors, meshes, hosts; `runtime.cells` alone uses IPython, in workers."""
