"""torch's process groups in a worker: freeing threads that are stuck in them, and telling where a thread is stuck."""
