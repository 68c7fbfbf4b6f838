"""The verbs of `%mesh`, one module each: a frozen dataclass of its arguments, its parser, and `run(notebook)`.

`base` has the base class and shared arguments, `registry` the table of all verbs.
"""
