"""``manyheads info``: versions, device, threads and kernels."""

import os
import platform
import re
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec

import torch

from manyheads import __version__
from manyheads.extras import requirements
from manyheads.functional import BACKENDS


def info() -> None:
    """Print the facts that a bug report needs; paste all of it."""
    print(facts())


def facts() -> str:
    """Versions, device, threads and kernels, a line each. Names no path, user or host.

    Example:
        >>> facts().splitlines()[0].split()[0]
        'manyheads'
    """
    lines = [("manyheads", __version__), *_system(), *_packages(), *_device(), *_kernels()]
    width = max(len(name) for name, _ in lines) + 2
    return "\n".join(f"{name:{width}}{value}" for name, value in lines)


def _system() -> Iterator[tuple[str, str]]:
    yield "python", f"{platform.python_version()} ({platform.python_implementation()})"
    yield "platform", f"{platform.system()} {platform.release()} {platform.machine()}"


def _packages() -> Iterator[tuple[str, str]]:
    """The core's, then those of each extra; one that several ask for is told once."""
    wanted = requirements()
    told = {"manyheads"}
    for line in (line for extra in sorted(wanted) for line in wanted[extra]):
        package = re.split(r"[^\w.-]", line, maxsplit=1)[0]
        if package not in told:
            told.add(package)
            try:
                yield package, metadata.version(package)
            except metadata.PackageNotFoundError:
                yield package, f'not installed (pip install "{line}")'


def _device() -> Iterator[tuple[str, str]]:
    yield "cpu", f"{torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} logical cores"
    yield "bfloat16 on cpu", _bfloat16()
    threads = f"{torch.get_num_threads()} in an operation, {torch.get_num_interop_threads()} beside"
    settings = [f"{name}={os.environ[name]}" for name in _THREAD_SETTINGS if name in os.environ]
    yield "threads", ", ".join([threads, *settings])
    if not torch.cuda.is_available():
        yield "gpu", "none that torch can use"
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        memory = f"{properties.total_memory / 2**30:.0f} GiB"
        capability = f"compute capability {properties.major}.{properties.minor}"
        yield f"gpu {number}", f"{properties.name}, {memory}, {capability}"
    yield "cuda of torch", torch.version.cuda or "none"


_THREAD_SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_PROC_BIND")


def _bfloat16() -> str:
    """By which instructions matrices of bfloat16 are multiplied, as far as torch tells."""
    cpu = torch.cpu
    asked = {"AMX": "_is_amx_tile_supported", "AVX-512 BF16": "_is_avx512_bf16_supported"}
    # Private to torch, so a later version may lack them.
    found = [name for name, ask in asked.items() if getattr(cpu, ask, lambda: False)()]
    return ", ".join(found) or "without instructions of its own"


def _kernels() -> Iterator[tuple[str, str]]:
    yield "backends", ", ".join(BACKENDS)
    sdp = torch.backends.cuda
    states = {
        "flash": sdp.flash_sdp_enabled(),
        "memory-efficient": sdp.mem_efficient_sdp_enabled(),
        "cudnn": sdp.cudnn_sdp_enabled(),
        "math": sdp.math_sdp_enabled(),
    }
    yield "sdpa allowed", ", ".join(name for name, on in states.items() if on) or "none"
    yield "onednn", "yes" if torch.backends.mkldnn.is_available() else "no"
    yield "triton", "yes" if find_spec("triton") else "no"
