"""The report of a run, and of several side by side: pictures and numbers in one offline page.

from headrace.measure.report import write_comparison, write_run_report

write_run_report(Path("runs/2026-11-15_bench"))  # plots, mixture files, report.html
write_comparison([Path("runs/a"), Path("runs/b")], Path("comparison.html"))
"""

from __future__ import annotations

from headrace.measure.report.page import write_comparison, write_run_report

__all__ = ["write_comparison", "write_run_report"]
