"""Variables on ranks: push, pull, scatter, gather, compare and list.

The name of a mesh is bound to a `NotebookProcMesh` (`mesh_handle`), whose slices know their `NotebookMesh`. So lower
layers know nothing of variables, and a pickle of it is a plain ProcMesh. Operations are generators of requests
(`requests`): a method waits on its thread, a `%%mesh` cell in the event loop, and the steps are the same. `--push`
and `--pull` travel in the cell's own message and reply, so nothing comes between. Pieces (`split`) are views: a large
dataset is copied when they are sent, and ranks with the same piece get it in one message. A rank with more than its
share of a gigabyte says so, and is asked again after a person agreed. `%mesh diff` sends a hash per part and per 4
MiB of numbers, and moves only blocks that differ, from one rank per variant, 64 MiB at most of one part. Columns of
tables are compared by buffers in a form of their own, since equal columns may lie in different chunks, views and
dictionaries.
"""
