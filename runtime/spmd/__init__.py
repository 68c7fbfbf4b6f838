"""SPMD programs: scripts as torchrun starts them, one rank per actor. Knows no hosts."""
