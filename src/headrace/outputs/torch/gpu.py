"""What a GPU is doing, read by NVML, and what it could do: peaks of known devices."""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

_log = logging.getLogger("headrace")

#: Dense operations a second in bfloat16 with sums in float32, as their maker states them; the
#: V100 and T4, which have no bfloat16, in float16. The longest name that fits counts.
_PEAKS = {
    "GB200": 2500e12,
    "B200": 2250e12,
    "GH200": 989e12,
    "H200": 989e12,
    "H200 NVL": 835e12,
    "H100": 989e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "A100": 312e12,
    "A40": 150e12,
    "A30": 165e12,
    "A10": 125e12,
    "A10G": 70e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "V100": 125e12,
    "V100-PCIE": 112e12,
    "T4": 65e12,
    "RTX A6000": 155e12,
    "RTX 6000 Ada": 364e12,
    "RTX 5090": 210e12,
    "RTX 5080": 113e12,
    "RTX 4090": 165e12,
    "RTX 4080": 97e12,
    "RTX 3090": 71e12,
    "RTX 3090 Ti": 80e12,
}


def peak_flops(device: str) -> float | None:
    """The peak of a device by its name; None if it is not known here.

    >>> peak_flops("NVIDIA H200"), peak_flops("NVIDIA L40S"), peak_flops("Radeon")
    (989000000000000.0, 362000000000000.0, None)
    """
    fitting = [name for name in _PEAKS if re.search(rf"\b{re.escape(name)}\b", device)]
    return _PEAKS[max(fitting, key=len)] if fitting else None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One look at a GPU."""

    utilization: float | None  #: percent of the last second or less in which a kernel ran
    memory_used: int  #: bytes, of all processes
    memory_total: int


class GpuReader:
    """Reads a CUDA device through NVML (`nvidia-ml-py`).

    NVML numbers devices otherwise than CUDA (CUDA_VISIBLE_DEVICES, MIG), so the device is found by
    its UUID. Where NVML is missing or fails, also in the middle of a run, one warning says so and
    there are no readings from then on.
    """

    def __init__(self, device: torch.device) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        try:
            nvml = import_module("pynvml")
            uuid = torch.cuda.get_device_properties(device).uuid
            nvml.nvmlInit()
            self._nvml = nvml
            self._handle = _handle(nvml, str(uuid))
        except ModuleNotFoundError:
            self._end("nvidia-ml-py is not installed (pip install 'headrace[train]')")
        except Exception as error:  # nothing that only watches a run may end it
            self._end(f"NVML: {error}")

    def read(self) -> GpuReading | None:
        """The device now; None where it cannot be read."""
        nvml = self._nvml
        if nvml is None:
            return None
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(self._handle)
            utilization: float | None = None
            with suppress(nvml.NVMLError_NotSupported):  # of a part of a GPU (MIG)
                utilization = float(nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)
            return GpuReading(utilization, int(memory.used), int(memory.total))
        except Exception as error:
            self._end(f"NVML: {error}")
            return None

    def close(self) -> None:
        """Let NVML go."""
        nvml, self._nvml = self._nvml, None
        if nvml is not None:
            with suppress(nvml.NVMLError):
                nvml.nvmlShutdown()

    def _end(self, why: str) -> None:
        _log.warning("GPU utilisation and memory are not recorded from now on: %s", why)
        self.close()


def _handle(nvml: Any, uuid: str) -> Any:
    """NVML's handle of a whole GPU, or of a part of one."""
    try:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except nvml.NVMLError:
        return nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")
