"""Messages, their bytes, and the pickling of their bodies. Nothing here opens a socket.

A frame is one message (`frames`): prefix, msgpack header, pickle stream, out-of-band buffers on 64-byte boundaries. One
frame and not several, so that Ctrl-C cannot cut a message in two. The messages are eight structs (`messages`): Hello,
Spawn, Call, Reply, Stop, Credit, HoldRequest, Down.

A body is copied once on the sending side, into the frame, so later changes of the caller do not show. Large data is
never in the pickle stream. `reducers` takes out what the libraries would pickle: strided NumPy arrays and
dates; Polars frames, as Arrow tables over the same memory, or as Arrow's IPC bytes (two more copies) where Arrow
lacks a type or pyarrow is missing. pyarrow pickles the parent of a slice; `slices` sends what the slice shows.
Classes are recognised by the name of their module, so nothing is imported for them. A worker imports pyarrow and
Polars when the first table arrives (0.3 s).
"""
