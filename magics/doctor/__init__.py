"""`%mesh doctor`: what of this installation and this machine stands in the way, and what to do about it."""
