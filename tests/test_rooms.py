"""The house rules of the import graph: rooms import downwards, and frameworks stay outside."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import headrace

ROOT = Path(headrace.__file__).parent
#: Lower number: deeper in the house. A module may import its own room and deeper ones.
LEVELS = {
    "errors": 0,
    "config": 2,
    "files": 1,
    "jobs": 1,
    "sampling": 3,
    "reading": 3,
    "decoding": 3,
    "engine": 3,
    "formats": 4,
    "catalog": 5,
    "loader": 6,
    "outputs": 7,
    "measure": 8,
    "tuning": 9,
    "recipes": 10,
    "testing": 9,
    "cli": 11,
    "__init__": 12,
    "__main__": 12,
}
FRAMEWORKS = {"torch", "jax", "tensorflow", "tensorflow_datasets", "matplotlib", "lightning"}
FRAMEWORK_ROOMS = {"outputs", "measure", "recipes"}


#: Imports against the order. The schema of run folders is written by `outputs` and `measure`, and
#: imports nothing above `files` itself.
EXCEPTIONS = {("outputs", "headrace.measure.runs")}


def modules():
    return sorted(ROOT.rglob("*.py"))


def room_of(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path):
    """Absolute names of everything a module imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_imports_only_its_own_room_and_deeper_ones(path):
    room = room_of(path)
    assert room in LEVELS, f"{room} is not a room of the design"
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "headrace" or len(parts) < 2 or parts[1] not in LEVELS:
            continue
        other = parts[1]
        if other == room or (room, ".".join(parts[:3])) in EXCEPTIONS:
            continue
        assert LEVELS[other] < LEVELS[room], f"{path.name} ({room}) imports {name}"


def test_the_schema_of_run_folders_imports_nothing_above_files():
    own = {name for name in imports(ROOT / "measure" / "runs.py") if name.startswith("headrace")}
    own |= {n for n in imports(ROOT / "measure" / "columns.py") if n.startswith("headrace")}
    below = ("headrace.errors", "headrace.files", "headrace.measure.columns")
    assert all(name.startswith(below) for name in own)


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_only_the_outer_rooms_import_frameworks(path):
    if room_of(path) not in FRAMEWORK_ROOMS:
        assert not {name.split(".")[0] for name in imports(path)} & FRAMEWORKS


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_threads_live_in_the_engine_alone(path):
    if room_of(path) == "engine":
        return
    source = path.read_text()
    for name in ("threading.Thread(", "ThreadPoolExecutor", "multiprocessing"):
        code = "\n".join(line for line in source.splitlines() if "`" not in line)
        assert name not in code, f"{path.name} uses {name}"


def test_importing_headrace_imports_no_framework_and_no_progress_bar():
    heavy = sorted(FRAMEWORKS | {"rich", "hydra", "omegaconf"})
    code = f"import sys, headrace; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_no_module_is_named_after_nothing():
    names = {path.stem for path in modules()}
    assert not names & {"utils", "helpers", "common", "misc"}
