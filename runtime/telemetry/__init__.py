"""What ranks report on their own: output, logs, vitals, spans and events. See README.md."""
