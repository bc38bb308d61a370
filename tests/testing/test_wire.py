"""The wire encoding, against plain twins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import UsageError
from headrace.testing import features as f
from headrace.testing.wire import encode_example, encode_varints, varint


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_an_array_of_varints_equals_the_varints_one_by_one(values):
    plain = b"".join(varint(value % 2**64) for value in values)
    assert encode_varints(np.array(values, np.int64)) == plain


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1))
def test_unsigned_64_bit_integers_keep_their_bits(values):
    plain = b"".join(varint(value) for value in values)
    assert encode_varints(np.array(values, np.uint64)) == plain


def test_small_types_take_one_byte_a_value():
    assert encode_varints(np.array([True, False, True])) == b"\1\0\1"
    assert encode_varints(np.arange(128, dtype=np.uint8)) == bytes(range(128))


def test_the_order_of_entries_differs_between_records_but_not_their_content():
    features = f.FeaturesDict({name: f.Scalar("int64") for name in "abcdefgh"})
    values = {name: ord(name) for name in "abcdefgh"}
    records = {b"".join(encode_example(features, values, order)) for order in range(4)}
    assert len(records) > 1
    assert len({bytes(sorted(record)) for record in records}) == 1


def test_values_that_do_not_fit_the_features_are_refused():
    features = f.FeaturesDict({"steps": f.Steps(f.FeaturesDict({"a": f.Tensor((2,), "int64")}))})
    with pytest.raises(UsageError, match=r"\['b'\].*steps"):
        encode_example(features, {"steps": {"a": [[1, 2]], "b": [3]}})
    with pytest.raises(UsageError, match=r"shape \(3,\) does not fit \(2,\) .*steps/a"):
        encode_example(features, {"steps": {"a": [[1, 2, 3]]}})
