"""meshbook: the notebook that drives a cluster."""
