"""The public names, pinned: adding one is a decision, removing one breaks people."""

import pickle
import subprocess
import sys
from importlib.util import find_spec

import pytest

import headrace as hr
from headrace import errors
from headrace.errors import RecordError, UnknownFieldError

NAMES = [
    "Batch",
    "Catalog",
    "Doctor",
    "HeadraceError",
    "Loader",
    "LoaderOptions",
    "Mixture",
    "ParquetCatalog",
    "RowLoader",
    "RowOptions",
    "RowSet",
    "RowTransform",
    "Source",
    "TorchLoader",
    "WindowDraw",
    "WindowSpec",
    "__version__",
    "examine_loop",
    "examine_step",
    "find_datasets",
    "known_dataset",
    "known_datasets",
]


def test_the_public_names_are_these_and_sorted():
    assert hr.__all__ == NAMES


def test_every_public_name_exists_and_says_what_it_is():
    for name in NAMES:
        if name == "TorchLoader" and not find_spec("torch"):
            with pytest.raises(errors.UsageError) as caught:
                getattr(hr, name)
            assert "headrace[train]" in caught.value.remedy
        else:
            assert getattr(hr, name).__doc__, name


def test_every_error_can_be_caught_by_the_one_base_class():
    found = [getattr(errors, name) for name in errors.__all__ if name.endswith("Error")]
    assert len(found) > 10
    assert all(issubclass(error, hr.HeadraceError) for error in found)


def test_what_needs_torch_is_imported_when_it_is_used():
    code = "import sys, headrace as hr; assert 'torch' not in sys.modules; print(dir(hr))"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_name_that_there_is_not_is_an_attribute_error():
    with pytest.raises(AttributeError, match="Lodaer"):
        hr.Lodaer  # noqa: B018


def test_an_error_survives_pickling_with_its_places_and_remedy():
    error = RecordError("torn", file="a", offset=7, episode=3, remedy="Copy it again")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert (again.file, again.offset, again.episode) == ("a", 7, 3)
    assert again.remedy == "Copy it again"
    assert type(again) is RecordError


def test_places_filled_in_later_do_not_overwrite_what_is_known():
    error = RecordError("torn", offset=7).within(offset=9, file="a")
    assert (error.offset, error.file) == (7, "a")


def test_errors_that_are_key_errors_still_print_as_sentences():
    assert str(UnknownFieldError("no camera 'x'")) == "no camera 'x'"


def test_the_version_is_that_of_the_package():
    from importlib.metadata import version

    assert hr.__version__ == version("headrace")
