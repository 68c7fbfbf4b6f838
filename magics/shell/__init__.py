"""Hooks in the notebook's own IPython shell."""
