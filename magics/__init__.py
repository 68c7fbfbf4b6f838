"""The notebook: the commands that a user types and the output. Options, selectors, running cells, output, errors.

A cell passes through `syntax` (transform, options, selectors), `cells` (plan, run, end), `output` (group, show) and
`results` (values, errors). `extension` composes them in `%load_ext meshbook`, and `notebook` has the context that cells
and verbs share: shell, meshes, session. Most packages keep their decisions pure, apart from the code that acts.

`compat` runs notebooks of ipyparallel and nbdistributed. `translation` turns their option lines into ours and
their cells into `%%mesh` cells, before the transform sees them. A stand-in module makes clusters from meshes. Calls
of direct views are requests to the cell actor, those of balanced views tasks of the map scheduler. Their replies are
recorded with their printed output (`runtime.cells.function_calls`), and unpickled on the client's own threads.
"""
