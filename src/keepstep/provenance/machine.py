"""What a job runs on: as far as it decides about bits, and what a person wants to know."""

import platform
import socket
from importlib import metadata as packages
from typing import Any

import torch

PACKAGES = ("torch", "transformers", "trl", "numpy", "keepstep")


def machine() -> dict[str, Any]:
    """Fields of the run record, in order; what is not there is null."""
    has_gpu = torch.cuda.is_available()
    return {
        "gpu": torch.cuda.get_device_name() if has_gpu else None,
        "gpus_on_host": torch.cuda.device_count() if has_gpu else 0,
        "cpu": _cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "host": socket.gethostname(),
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
    }


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return packages.version(package)
    except packages.PackageNotFoundError:
        return None
