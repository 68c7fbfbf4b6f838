"""The results of a cell: values, errors and costs of all ranks."""
