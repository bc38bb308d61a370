"""Freed memory stays with a process that has asked for that."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, resource
import numpy as np
from headrace.engine.freed_memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        arrays = [np.ones(3 << 16) for _ in range(16)]  # 1.5 MiB each
        del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first = faults()
kept = keep_freed_memory()
faults()
print(json.dumps([kept, first, faults()]))
"""


def test_arrays_are_made_again_and_again_without_new_pages():
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    kept, before, after = json.loads(ran.stdout)
    if not kept:
        pytest.skip("this malloc cannot be told")
    assert after < before / 10
