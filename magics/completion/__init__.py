"""Completion: on lines of `%%mesh` and `%mesh`, and in bodies that run on ranks."""
