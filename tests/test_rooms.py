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
    "files": 1,
    "jobs": 1,
    "config": 2,
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
#: Imports against the order: run folders are written, and judged, by `outputs` as well. These
#: modules import nothing above `files` that is not of their own kind.
EXCEPTIONS = {("outputs", f"headrace.measure.{name}") for name in ("clock", "runs", "verdict")}


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
    schema = ("clock", "columns", "runs")
    own = {name for each in schema for name in imports(ROOT / "measure" / f"{each}.py")}
    below = ("headrace.errors", "headrace.files", *(f"headrace.measure.{x}" for x in schema))
    assert all(name.startswith(below) for name in own if name.startswith("headrace"))


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_only_the_outer_rooms_import_frameworks(path):
    if room_of(path) not in FRAMEWORK_ROOMS:
        assert not {name.split(".")[0] for name in imports(path)} & FRAMEWORKS


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_threads_live_in_the_engine_alone(path):
    if room_of(path) != "engine":
        used = set(imports(path)) | attributes(path)
        assert not used & {"threading.Thread", "threading.Timer", "multiprocessing", "os.fork"}
        assert not {name for name in used if name.startswith("concurrent.futures")}


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_processes_are_started_by_the_engine_by_jobs_and_by_isolated_measurements(path):
    if room_of(path) not in ("engine", "jobs", "measure", "testing"):
        used = set(imports(path)) | attributes(path)
        assert not used & {"subprocess.Popen", "subprocess.run", "headrace.jobs.start_python"}


def attributes(path):
    """Names such as `threading.Thread` that a module uses."""
    return {
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }


def in_room(room):
    return [path for path in modules() if room_of(path) == room]


def exported(place):
    """The names in a module's `__all__`, read from its text: its framework may be missing."""
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return ast.literal_eval(node.value)
    return []


@pytest.mark.parametrize("path", in_room("recipes"), ids=lambda p: str(p.relative_to(ROOT)))
def test_recipes_import_public_names_only(path):
    """From headrace, its errors and files, and what the packages of rooms export (`__all__`)."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or not node.module.startswith("headrace"):
            continue
        if node.module.startswith("headrace.recipes"):
            continue
        place = ROOT.joinpath(*node.module.split(".")[1:])
        package = place.is_dir() or node.module in ("headrace.errors", "headrace.files")
        output = place.parent.name == "outputs"  # one module or a package for each framework
        assert package or output, f"{node.module} is not public"
        public = exported(place)
        for alias in node.names:
            module = place / f"{alias.name}.py"
            assert alias.name in public or module.exists(), f"{node.module}.{alias.name}"


def test_importing_headrace_imports_no_framework_and_no_progress_bar():
    heavy = sorted(FRAMEWORKS | {"rich", "hydra", "omegaconf"})
    code = f"import sys, headrace; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_no_module_is_named_after_nothing():
    names = {path.stem for path in modules()}
    assert not names & {"utils", "helpers", "common", "misc"}
