"""What a result hangs on: the processor, the versions, the threads."""

import os
import platform
from importlib import metadata
from pathlib import Path

import torch

Machine = dict[str, str | int]


def describe() -> Machine:
    """The machine, in words that a reader can compare with theirs."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": metadata.version("numpy"),
        "threads": torch.get_num_threads(),
    }


def is_busy() -> bool:
    """Whether others want the cores too: ratios bear that, single times do not."""
    return os.getloadavg()[0] > (os.cpu_count() or 1)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":")[1].strip()
    return platform.processor() or platform.machine()
