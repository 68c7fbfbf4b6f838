"""Processes and where they come from: the session, the host agent, the fork server, the worker. See README.md."""
