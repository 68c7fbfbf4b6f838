"""The dashboards of a notebook: their contents, and the actions of their buttons.

There is one dashboard per mesh name (`registry`), in any number of views; a mesh that is started again appears in the
same one. `source` supplies the numbers, from the session's `History` and from the notebook. Buttons act like the verbs
of `%mesh` (`actions`), on their own threads. Interrupt sends SIGINT to this process if a cell blocks the notebook, so
it acts like Ctrl-C.
"""
