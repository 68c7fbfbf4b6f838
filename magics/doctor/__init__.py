"""`%mesh doctor`: find the problems of this installation and this machine, with remedies."""
