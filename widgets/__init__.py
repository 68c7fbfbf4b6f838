"""Live displays of a mesh, on ipywidgets. Empty yet: the dashboard will live here."""
