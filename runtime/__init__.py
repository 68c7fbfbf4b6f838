"""Everything that is independent of Jupyter: nodes, actors, meshes, hosts; only `runtime.cells`, in workers, uses
IPython."""
