"""The verbs of `%mesh`: a module for each, and the table of them."""
