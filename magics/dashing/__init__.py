"""The dashboards of a notebook: what they show of its meshes, and what their buttons do."""
