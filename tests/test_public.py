"""The public names, pinned: adding one is a decision, removing one breaks people."""

import pickle

import headrace as hr
from headrace.errors import HeadraceError

NAMES = [
    "Batch",
    "BudgetError",
    "ByteRange",
    "Catalog",
    "CatalogError",
    "DataError",
    "DatasetError",
    "Doctor",
    "EpisodeInfo",
    "Field",
    "HeadraceError",
    "ImageError",
    "KnownDataset",
    "Loader",
    "LoaderOptions",
    "Mixture",
    "ParquetCatalog",
    "RecordError",
    "RowLoader",
    "RowOptions",
    "RowSet",
    "RowTransform",
    "Schema",
    "SelectionError",
    "Source",
    "SplitError",
    "UnknownDatasetError",
    "UnknownFieldError",
    "UsageError",
    "WindowDraw",
    "WindowSpec",
    "WorkerError",
    "__version__",
    "examine_step",
    "find_datasets",
    "known_dataset",
    "known_datasets",
]


def test_the_public_names_are_these_and_sorted():
    assert hr.__all__ == NAMES


def test_every_public_name_exists_and_says_what_it_is():
    for name in NAMES:
        assert getattr(hr, name).__doc__, name


def test_every_error_can_be_caught_by_the_one_base_class():
    errors = [getattr(hr, name) for name in NAMES if name.endswith("Error")]
    assert all(issubclass(error, HeadraceError) for error in errors)


def test_an_error_survives_pickling_with_its_places_and_remedy():
    error = hr.RecordError("torn", file="a", offset=7, episode=3, remedy="Copy it again")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "torn [file a, offset 7, episode 3]. Copy it again"
    assert type(again) is hr.RecordError


def test_places_filled_in_later_do_not_overwrite_what_is_known():
    error = hr.RecordError("torn", offset=7).within(offset=9, file="a")
    assert (error.offset, error.file) == (7, "a")


def test_errors_that_are_key_errors_still_print_as_sentences():
    assert str(hr.UnknownFieldError("no camera 'x'")) == "no camera 'x'"


def test_the_version_is_that_of_the_package():
    from importlib.metadata import version

    assert hr.__version__ == version("headrace")
