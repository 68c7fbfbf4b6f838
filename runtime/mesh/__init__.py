"""Handles of hosts, processes and actors with a shape; picklable, sliced like arrays."""
