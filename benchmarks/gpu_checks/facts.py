"""What the machine has, and what meshbook finds there."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys

import psutil
import torch

from gpu_checks import GIB, HAS_GPU, check, put


@check(15)
def machine() -> None:
    """Versions, the GPU, and the limits of the machine that other figures depend on."""
    put(python=platform.python_version(), torch=torch.__version__, cuda=torch.version.cuda, system=platform.platform())
    put(cores=len(os.sched_getaffinity(0)), memory_gib=psutil.virtual_memory().total / GIB)
    put(shared_memory_gib=shutil.disk_usage("/dev/shm").total / GIB)
    if HAS_GPU:
        properties = torch.cuda.get_device_properties(0)
        put(gpu=properties.name, gpu_memory_gib=properties.total_memory / GIB, gpus=torch.cuda.device_count())
        put(capability=list(torch.cuda.get_device_capability()), nccl=list(torch.cuda.nccl.version()))
        put(allocator=os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""))


@check(20)
def doctor() -> None:
    """`meshbook doctor` finds no problem on this machine."""
    found = subprocess.run([sys.executable, "-m", "meshbook", "doctor"], capture_output=True, text=True, check=False)
    put(findings=[line for line in found.stdout.splitlines() if line and not line.startswith(("ok ", " "))])
    assert found.returncode == 0, found.stdout + found.stderr
