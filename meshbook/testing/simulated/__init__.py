"""A mesh that is only simulated: it looks to a dashboard like one that trains, at any size, without a process.

    faults (who has one), training (steps of all ranks) -> measures -> mesh (a `Source`) -> board (live, in a notebook)

Pure and the same for the same seed; only the board has a clock.
"""
