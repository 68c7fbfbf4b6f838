"""Variables on ranks: push, pull, scatter, gather, compare and list.

The name of a mesh is bound to a `NotebookProcMesh` (`mesh_handle`), whose slices refer to their `NotebookMesh`. So
lower layers do not depend on variables, and it pickles as a plain ProcMesh. Operations are generators of requests
(`requests`): a method waits on its thread, a `%%mesh` cell in the event loop, and the steps are the same.

`--push` and `--pull` travel in the cell's own message and reply, so nothing can run in between. Pieces (`split`) are
views: a large dataset is copied when they are sent, and ranks with the same piece get it in one message. A rank whose
reply exceeds its share of a gigabyte returns only the size, and is queried again once the user agrees.

`%mesh diff` sends one hash per part and one per 4 MiB of numbers. It moves only blocks that differ, from one rank per
variant, and at most 64 MiB of one part. Columns of tables are compared by buffers in a normalized form, since equal
columns may lie in different chunks, views and dictionaries.
"""
