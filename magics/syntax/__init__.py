"""The text of a mesh cell: selectors, options, variable names, and the transform that makes a cell a call.

`transform` rewrites a cell whose first line, below comments, is `%%mesh` or `#mesh:` to an async call of the runner.
History, `Out`, events and errors remain IPython's. In mesh mode (`mode`) it also rewrites cells without a magic, except
cells within cells and code that a front end runs silently. A rank shows the magic's line in its original form.
"""
