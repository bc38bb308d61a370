"""Figures in words: times, rates, sizes, shares. A dash for what is not known."""

from __future__ import annotations


def seconds(value: float | None) -> str:
    """A time.

    >>> seconds(0.0123), seconds(2.5), seconds(0.00005), seconds(None), seconds(400)
    ('12.3 ms', '2.5 s', '50 µs', '-', '400 s')
    """
    if value is None:
        return "-"
    for factor, unit in ((1, "s"), (1e3, "ms")):
        if abs(value) * factor >= 0.9995 or (value == 0 and unit == "s"):
            return f"{amount(value * factor)} {unit}"
    return f"{amount(value * 1e6)} µs"


def megabytes(value: float | None) -> str:
    """A size given in MB.

    >>> megabytes(251.4), megabytes(2514), megabytes(None)
    ('251 MB', '2.51 GB', '-')
    """
    if value is None:
        return "-"
    return f"{amount(value / 1000)} GB" if abs(value) >= 999.5 else f"{amount(value)} MB"


def share(value: float | None, digits: int = 0) -> str:
    """A part of one, in percent.

    >>> share(0.925), share(0.0345, 1), share(None)
    ('92%', '3.5%', '-')
    """
    return "-" if value is None else f"{100 * value:.{digits}f}%"


def amount(value: float | None) -> str:
    """A number to three digits, thousands separated.

    >>> amount(1289.6), amount(12.345), amount(0.5), amount(None)
    ('1,290', '12.3', '0.5', '-')
    """
    if value is None:
        return "-"
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    return f"{float(text):f}".rstrip("0").rstrip(".") if "e" not in text else text
