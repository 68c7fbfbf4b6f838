"""Runs programs one after the other as `__main__`, on each rank; the errors go to a folder: `ddp.0` is empty if it ran.

torchrun --nproc-per-node 2 run_programs.py FOLDER programs/ddp.py programs/fsdp2.py
"""

import os
import runpy
import socket
import sys
import traceback
from pathlib import Path

from torch.distributed import TCPStore

folder, *programs = map(Path, sys.argv[1:])
rank = os.environ["RANK"]
is_torchrun = os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True"
if is_torchrun:
    # All groups of torchrun's processes meet in the agent's store, where the next finds what the last one has left.
    agent = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"


def choose_port(name: str) -> str:
    """A port that is new to all ranks."""
    if rank == "0":
        with socket.create_server(("", 0)) as door:
            agent.set(name, str(door.getsockname()[1]))
    return agent.get(name).decode()


error = ""
for program in programs:
    if is_torchrun:
        os.environ["MASTER_PORT"] = choose_port(program.stem)
    try:
        runpy.run_path(str(program), run_name="__main__")
    except Exception:
        error = traceback.format_exc()
    (folder / f"{program.stem}.{rank}").write_text(error)
    if error:
        break  # the other rank may wait for this one for ever
sys.stdout.flush()
if is_torchrun:
    if not error:
        # Rank 0 holds the store of the last program, which another rank may still read.
        agent.set(f"ended {rank}", "")
        agent.wait([f"ended {each}" for each in range(int(os.environ["WORLD_SIZE"]))])
    # At its regular exit torch aborts the process at times: "terminate called without an active exception".
    os._exit(bool(error))
sys.exit(bool(error))
