"""The benchmark: a backend in a fresh process, watched, archived, and several side by side."""

from headrace.measure.bench.compare import Comparison, compare
from headrace.measure.bench.run import bench
from headrace.measure.bench.settings import BenchSettings

__all__ = ["BenchSettings", "Comparison", "bench", "compare"]
