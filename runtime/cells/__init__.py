"""Cells on a rank: the shell that runs them, what they leave, and how they are interrupted."""
