"""Errors carry their place, and keep it across processes."""

import pickle

import pytest

from headrace import errors


def test_a_message_has_the_problem_the_places_and_the_remedy():
    error = errors.RecordError("damaged", file="a", offset=0, remedy="Copy it again")
    assert str(error) == "damaged [file a, offset 0]. Copy it again"
    assert str(errors.UnknownFieldError("no camera 'x'")) == "no camera 'x'"


def test_places_are_added_where_they_are_not_known():
    error = errors.ImageError("damaged", file="a").within(file="b", episode="train/00000/1")
    assert (error.file, error.episode) == ("a", "train/00000/1")


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_crosses_processes_whole(name):
    error = getattr(errors, name)("problem", remedy="remedy", dataset="bridge", frame=3)
    for copy in (
        errors.HeadraceError.from_dict(error.to_dict()),
        pickle.loads(pickle.dumps(error)),
    ):
        assert type(copy) is type(error)
        assert str(copy) == str(error)
        assert (copy.dataset, copy.frame, copy.file) == ("bridge", 3, None)


def test_a_subclass_from_elsewhere_arrives_as_its_nearest_class():
    class OwnError(errors.UsageError):
        pass

    copy = errors.HeadraceError.from_dict(OwnError("problem", field="a").to_dict())
    assert type(copy) is errors.UsageError
    assert copy.field == "a"
