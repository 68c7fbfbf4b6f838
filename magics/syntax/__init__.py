"""The text of a mesh cell: selectors, options, variable names, and the transform that makes a cell a call."""
