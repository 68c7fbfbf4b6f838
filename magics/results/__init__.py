"""The results of a cell: values, errors and costs of all ranks.

`make_cell_error` (`cell_error`) makes one error of all failed ranks, whose class has the name of the original's.
"""
