import pytest
from hypothesis import example as hypothesis_example
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import RecordError
from headrace.formats.example import (
    BYTES,
    EMPTY,
    FLOATS,
    INTS,
    blob_ends,
    blob_place,
    packed_place,
    walk,
)
from tests.formats.wire import Guarded, bytes_list, delimited, example, float_list, int_list, varint

names = st.text(min_size=0, max_size=12)
features = st.dictionaries(
    names,
    st.one_of(
        st.lists(st.binary(max_size=300), max_size=5).map(lambda v: ("bytes", v)),
        st.lists(st.floats(width=32, allow_nan=False), max_size=8).map(lambda v: ("floats", v)),
        st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8).map(lambda v: ("ints", v)),
    ),
    max_size=6,
)
WRITERS = {"bytes": bytes_list, "floats": float_list, "ints": int_list}
KINDS = {"bytes": BYTES, "floats": FLOATS, "ints": INTS}


def written(content):
    return example({name: WRITERS[kind](items) for name, (kind, items) in content.items()})


def elements(data, start, stop):
    found, before = [], 0
    for end in blob_ends(data, start, stop):
        offset, length = blob_place(before, end)
        found.append(bytes(data[start + offset : start + offset + length]))
        before = end
    return found


@given(features, st.binary(max_size=20), st.binary(max_size=20))
def test_every_list_is_found_and_nothing_outside_the_record_is_read(content, before, after):
    record = written(content)
    data = before + record + after
    buffer = Guarded(data, len(before), len(before) + len(record))
    found = walk(buffer, buffer.start, buffer.stop)
    assert set(found) == set(content)
    for name, (kind, items) in content.items():
        place = found[name]
        assert place.kind == KINDS[kind]
        if kind == "bytes":
            assert elements(buffer, place.start, place.stop) == items
        else:
            first, last = packed_place(buffer, place)
            packed = WRITERS[kind](items)
            assert packed.endswith(data[first:last])


@settings(max_examples=300)
@given(features, st.data())
def test_mutated_records_raise_record_errors_only_and_never_read_outside(content, data):
    record = bytearray(written(content))
    for _ in range(data.draw(st.integers(1, 4))):
        how = data.draw(st.sampled_from(["flip", "cut", "insert"]))
        at = data.draw(st.integers(0, max(0, len(record) - 1)))
        if how == "flip" and record:
            record[at] ^= 1 << data.draw(st.integers(0, 7))
        elif how == "cut":
            del record[at : at + data.draw(st.integers(1, 5))]
        else:
            record[at:at] = data.draw(st.binary(min_size=1, max_size=5))
    _walk_everything(bytes(record))


@settings(max_examples=300)
@given(st.binary(max_size=200))
@hypothesis_example(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")
@hypothesis_example(b"\x0a\x80")
def test_random_bytes_raise_record_errors_only(data):
    _walk_everything(data)


def _walk_everything(record):
    buffer = Guarded(b"\xff" * 7 + record + b"\xff" * 7, 7, 7 + len(record))
    try:
        for place in walk(buffer, buffer.start, buffer.stop).values():
            assert buffer.start <= place.start <= place.stop <= buffer.stop
            if place.kind == BYTES:
                for end in blob_ends(buffer, place.start, place.stop):
                    assert place.start + end <= place.stop
            elif place.kind != EMPTY:
                first, last = packed_place(buffer, place)
                assert place.start <= first <= last <= place.stop
    except RecordError as error:
        assert error.remedy
        assert "tf.train.Example" in error.problem


@given(st.integers(0, 1 << 33))
def test_the_place_of_a_blob_follows_from_its_end(length):
    gap = 1 + len(varint(length)) + length
    assert blob_place(1000, 1000 + gap) == (1000 + gap - length, length)


@pytest.mark.parametrize("length", [0, 1, 127, 128, 16383, 16384, 2097151, 2097152])
def test_blobs_at_the_edges_of_varint_widths_are_found(length):
    data = bytes_list([b"x" * length, b"end"])
    place = walk(example({"k": data}), 0, len(example({"k": data})))["k"]
    assert elements(example({"k": data}), place.start, place.stop) == [b"x" * length, b"end"]


@pytest.mark.parametrize(
    "record",
    [
        varint(5 << 3 | 5) + b"abcd",
        delimited(5, example({})),
        delimited(1, delimited(9, b"future")),
        delimited(1, delimited(1, delimited(1, b"k") + delimited(3, b"x"))),
        delimited(1, delimited(1, delimited(1, b"k") + delimited(2, delimited(4, b"x")))),
    ],
)
def test_fields_that_an_example_does_not_have_are_treated_as_damage(record):
    with pytest.raises(RecordError, match="tag"):
        walk(record, 0, len(record))


def test_a_name_given_twice_takes_the_last_value_as_protobuf_does():
    one = delimited(1, delimited(1, b"k") + delimited(2, int_list([5])))
    two = delimited(1, delimited(1, b"k") + delimited(2, float_list([5.0])))
    record = delimited(1, one) + delimited(1, two)
    assert walk(record, 0, len(record))["k"].kind == FLOATS


@pytest.mark.parametrize(
    ("feature", "problem"),
    [
        (delimited(3, varint(1 << 3) + b"\x05"), "not packed"),
        (delimited(3, delimited(1, b"\x05") + delimited(1, b"\x06")), "split"),
        (delimited(2, delimited(1, b"abcde")), "multiple of 4"),
    ],
)
def test_lists_in_a_form_that_no_writer_emits_are_refused(feature, problem):
    record = example({"k": feature})
    with pytest.raises(RecordError, match=problem):
        packed_place(record, walk(record, 0, len(record))["k"])


def test_a_length_longer_than_needed_is_refused_because_places_would_not_follow_from_ends():
    payload = b"\x0a\x83\x00abc"  # length 3 in two bytes
    with pytest.raises(RecordError, match="varint"):
        blob_ends(payload, 0, len(payload))
