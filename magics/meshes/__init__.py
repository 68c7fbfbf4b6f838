"""The meshes of a notebook: their registry, lifecycle, status and stacks."""
