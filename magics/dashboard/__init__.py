"""The dashboards of a notebook: what they show, and the actions of their buttons.

There is one per mesh (`registry`), however often it is shown, by the mesh's name; a mesh that is started again
appears again. `source` gives the numbers, from the session's `History` and from the notebook. Buttons act as the
verbs of `%mesh` do (`actions`), on threads of their own; Interrupt is SIGINT to this process where a cell holds the
notebook, so it is Ctrl-C.
"""
