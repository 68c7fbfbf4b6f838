"""Traces and profiles of cells."""
