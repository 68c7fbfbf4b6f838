"""The live dashboard of a mesh: a pure model, and a widget that shows it (anywidget, on ipywidgets)."""
