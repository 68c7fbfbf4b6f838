"""The results of a cell: values, errors and costs of all ranks.

`make_cell_error` (`magics.errors`) combines the errors of all failed ranks into one. Its class has the name of the
first group's error.
"""
