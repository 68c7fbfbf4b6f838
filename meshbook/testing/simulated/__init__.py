"""A simulated mesh: a dashboard shows it like one that trains, at any size, without a process.

    faults (of ranks), training (steps of all ranks) -> measures, logged_curves -> mesh (a `Source`)
    mesh -> backend (live, in a notebook)

Pure and the same for the same seed; only the board has a clock.
"""
