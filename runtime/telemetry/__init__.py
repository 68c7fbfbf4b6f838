"""Reports of ranks: output, logs, vitals, spans and events. See README.md."""
