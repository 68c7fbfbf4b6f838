"""The output of a cell: collecting, grouping and showing what ranks write and display."""
