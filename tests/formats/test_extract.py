import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import HeadraceError, ImageError, RecordError
from headrace.formats.extract import decode_tensor, decode_varints, index_record, plan, values
from headrace.formats.features import parse_features
from tests.formats.schemas import EVERYTHING, dataset, image, sequence, tensor
from tests.formats.wire import (
    Guarded,
    RecordPlaces,
    bytes_list,
    everything_record,
    example,
    float_list,
    int_list,
    varint,
)


class Reader:
    """Reads fields of one record and counts the bytes read."""

    def __init__(self, schema, record):
        self.schema = parse_features(schema)
        self.record = record
        parts = plan(self.schema)
        self.index = index_record(record, 0, len(record), parts)
        self.places = RecordPlaces(self.index, parts)
        self.fetched = 0

    def fetch(self, offset, length):
        self.fetched += length
        return self.record[offset : offset + length]

    def __call__(self, name, start=0, stop=None):
        stop = self.index.steps if stop is None else stop
        return values(self.schema.find(name), self.places, self.fetch, start, stop)


@pytest.fixture
def everything():
    return Reader(EVERYTHING, everything_record(5))


def test_every_kind_of_field_is_read_for_a_range_of_steps(everything):
    assert everything.index.steps == 5
    assert everything("action", 1, 3).tolist() == [[1.0, 1.5], [2.0, 2.5]]
    assert everything("flag").tolist() == [True, False, False, False, False]
    assert everything("codes", 1, 2).tolist() == [[-3000, -4000, -5000]]
    assert everything("codes").dtype == np.int32
    assert everything("double", 2, 4).tolist() == [[2.0, 0.1], [3.0, 0.1]]
    assert [a.tolist() for a in everything("zipped", 1, 3)] == [[[1, 1]], [[2, 2], [2, 2]]]
    assert [list(w) for w in everything("words", 0, 3)] == [[], [b"w"], [b"w", b"w"]]
    assert [[a.tolist() for a in row] for row in everything("nested", 4, 5)] == [[[1.0], [1.0]]]
    assert list(everything("instruction", 3, 5)) == [b"step 3", b"step 4"]
    assert everything("image", 2, 3)[0] == b"\x89PNG\0\0"
    assert everything("episode_metadata/path") == b"a/b"
    assert everything("episode_metadata/sizes").tolist() == [1, 2, 300]


def test_only_the_requested_steps_are_read(everything):
    everything("action", 1, 3)
    assert everything.fetched == 2 * 2 * 4
    everything.fetched = 0
    everything("image", 2, 3)
    assert everything.fetched == 2 + 6  # tag, length, bytes


def test_an_empty_range_is_empty_and_reads_nothing(everything):
    assert everything("action", 2, 2).shape == (0, 2)
    assert len(everything("image", 2, 2)) == 0
    assert everything.fetched == 0


def test_an_episode_without_steps_is_read():
    reader = Reader(EVERYTHING, everything_record(0))
    assert reader.index.steps == 0
    assert reader("action").shape == (0, 2)
    assert reader("words") == []
    assert len(reader("image")) == 0


@pytest.mark.parametrize(
    ("schema", "record"),
    [
        ({"said": tensor((), "string")}, {"steps/said": bytes_list([b"a", b"b"])}),
        ({"flag": tensor((), "bool")}, {"steps/flag": int_list([1, 0])}),
        ({"pose": tensor((3,))}, {"steps/pose": float_list([0.0] * 6)}),
        (
            {"row": sequence(tensor())},
            {
                "steps/row/ragged_flat_values": float_list([1.0]),
                "steps/row/ragged_row_lengths_0": int_list([1, 0]),
            },
        ),
    ],
)
def test_the_number_of_steps_follows_from_any_field(schema, record):
    assert Reader(dataset(schema), example(record)).index.steps == 2


def test_cameras_of_different_length_are_damage():
    schema = dataset({"a": image(), "b": image()})
    record = example({"steps/a": bytes_list([b"1", b"2"]), "steps/b": bytes_list([b"1"])})
    with pytest.raises(RecordError, match="'steps/b' has 1 blobs.* 2 steps") as caught:
        Reader(schema, record)
    assert caught.value.field == "steps/b"


def test_numbers_that_do_not_fit_the_steps_are_damage():
    schema = dataset({"a": image(), "x": tensor((3,))})
    record = example({"steps/a": bytes_list([b"1", b"2"]), "steps/x": float_list([1.0] * 5)})
    with pytest.raises(RecordError, match="'steps/x' has 5 numbers.* 2 steps.* 6"):
        Reader(schema, record)


def test_a_field_that_the_record_lacks_is_an_error_when_it_is_read_and_not_before():
    schema = dataset({"a": image(), "b": image(), "x": tensor((3,)), "n": tensor((), "int64")})
    reader = Reader(schema, example({"steps/a": bytes_list([b"1", b"2"])}))
    assert len(reader("a")) == 2
    for name in ("b", "x", "n"):
        with pytest.raises(RecordError, match=f"'steps/{name}'"):
            reader(name)


def test_a_field_stored_as_another_type_is_named():
    schema = dataset({"x": tensor((3,))})
    with pytest.raises(RecordError, match="'steps/x' as integers"):
        Reader(schema, example({"steps/x": int_list([1, 2, 3])}))


def field_of(encoding, dtype="uint8", shape=(None,)):
    return parse_features(dataset({"x": tensor(shape, dtype, encoding)})).find("x")


def test_a_zlib_tensor_that_expands_without_bound_is_stopped_at_its_size():
    bomb = zlib.compress(bytes(50_000_000), 9)
    with pytest.raises(ImageError, match="12 bytes"):
        decode_tensor(bomb, field_of("zlib", shape=(12,)), (12,))
    with pytest.raises(ImageError, match="1,000,000 bytes"):
        decode_tensor(bomb, field_of("zlib"), (None,), limit=1_000_000)


def test_a_stored_shape_beyond_the_limit_is_refused_before_memory_is_allocated():
    with pytest.raises(ImageError, match="268,435,456"):
        decode_tensor(b"", field_of("zlib"), (1 << 20, 1 << 20))


@pytest.mark.parametrize("data", [b"", b"not zlib", zlib.compress(b"abcdef")[:-3]])
def test_a_broken_zlib_tensor_is_an_error_with_a_remedy(data):
    with pytest.raises(ImageError) as caught:
        decode_tensor(data, field_of("zlib", shape=(6,)), (6,))
    assert caught.value.remedy


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_varints_are_decoded_as_they_were_written(numbers):
    data = b"".join(varint(n & (1 << 64) - 1) for n in numbers)
    assert decode_varints(data).tolist() == numbers


@given(st.binary(max_size=40))
def test_random_varints_raise_record_errors_only(data):
    try:
        decode_varints(data)
    except RecordError:
        pass


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_reading_mutated_records_raises_headrace_errors_only(data):
    record = bytearray(everything_record(3))
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(record) - 1))
        record[at] = data.draw(st.integers(0, 255))
    schema = parse_features(EVERYTHING)
    parts = plan(schema)
    buffer = Guarded(bytes(record), 0, len(record))
    try:
        index = index_record(buffer, 0, len(record), parts)
    except HeadraceError:
        return
    places = RecordPlaces(index, parts)
    for field in schema.fields:
        try:
            values(field, places, lambda o, n: buffer[o : o + n], 0, index.steps)
        except HeadraceError as error:
            assert error.problem
