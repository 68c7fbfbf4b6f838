"""Messages, their bytes, and the pickling of their bodies. Nothing here opens a socket."""
