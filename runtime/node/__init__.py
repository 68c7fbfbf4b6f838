"""The node: inbox, routes, open calls, hosted actors. Every process runs one."""
