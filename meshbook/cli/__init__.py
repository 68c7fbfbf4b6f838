"""The verbs of the command `meshbook`: `command_line` has their parser, the other modules what they do.

Modules import what is heavy only where a verb needs it, so that `meshbook --help` takes no time.
"""
