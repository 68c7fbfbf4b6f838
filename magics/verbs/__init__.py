"""The verbs of `%mesh`: for each a frozen dataclass of its arguments, with its parser and `run(notebook)`.

`base` has the base class and shared arguments, `registry` the table of all verbs and the parser of a line. The other
modules have the verbs by theme:

- `start_stop`: up, use, down, resize, heal, restart
- `status`: status, dash, metrics, doctor
- `debugging`: interrupt, stack, debug
- `variables`: push, pull, who, whos, diff
- `jobs`: jobs, result, cancel
- `notebook_settings`: mode, config
- `attach`, `detach`, `trace`, `profile`, `log`: the verb of that name
"""
