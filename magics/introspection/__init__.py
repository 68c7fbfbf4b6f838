"""Completion and inspection in mesh cells and on option lines."""
