"""Running a mesh cell: its plan, its execution on the ranks, and how it ends."""
