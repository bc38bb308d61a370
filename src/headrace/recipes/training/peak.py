"""What common devices can do at most, in dense bfloat16 operations a second, by their makers."""

from __future__ import annotations

__all__ = ["peak_flops"]

_PEAKS = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "GH200": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
}


def peak_flops(device: str) -> float | None:
    """Of a device by its name; None if it is not known here.

    >>> peak_flops("NVIDIA H200"), peak_flops("Radeon")
    (989000000000000.0, None)
    """
    return next((peak for name, peak in _PEAKS.items() if name in device), None)
