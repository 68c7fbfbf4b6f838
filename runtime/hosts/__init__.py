"""Processes and their creation: the session, the host agent, the fork server, the worker. See README.md."""
