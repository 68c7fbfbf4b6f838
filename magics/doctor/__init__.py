"""`%mesh doctor`: find the problems of this installation and this machine, with remedies."""

from __future__ import annotations

from meshbook.magics.doctor import machine, processes, software
from meshbook.magics.doctor.finding import Check

CHECKS: tuple[Check, ...] = (
    software.python,
    software.packages,
    software.extras,
    software.kernelspec,
    machine.cores,
    machine.memory,
    machine.shared_memory,
    machine.open_files,
    machine.locked_memory,
    machine.name_service,
    processes.process_memory,
    processes.folder_of_runs,
    processes.a_worker,
    software.gpus,  # last: it imports torch, and a worker of a process that has imported it does so too
)
