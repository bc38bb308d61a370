"""Tokens back to measurements."""

import ipaddress
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.network_plain import reference_measurements, reference_tokens
from headrace.errors import DataError
from headrace.recipes.network import LENGTH, decode, tokenize_windows
from headrace.recipes.network import vocabulary as v
from tests.recipes.network.made_rows import prepared, rows
from tests.recipes.network.test_tokenize import fields, usual


def address(text, version):
    return str(ipaddress.ip_address(text or ("0.0.0.0" if version == 4 else "::")))


def check(measurement, row, timed):
    assert measurement.src == address(row.src, row.version)
    assert measurement.dst == address(row.dst, row.version)
    assert (measurement.delta is not None or measurement.time is not None) == timed
    if row.rtt is None or not math.isfinite(row.rtt) or row.rtt < 0:
        assert measurement.rtt is None
    else:
        kept = min(max(row.rtt, 0.001), 2047 * 2.0**31 / 1000)
        assert abs(measurement.rtt - kept) <= max(0.001 * kept, 0.001)


@settings(max_examples=80, deadline=None)
@given(st.lists(rows(), min_size=1, max_size=12), st.integers(0, 10**6))
def test_what_was_tokenized_is_measured_again(made, window):
    order = reference_measurements(made, window, 0, 0)
    found = decode(reference_tokens(made, window, 0, 0))
    assert len(found) == len(made)
    previous, exact = None, min(each.time for each in made) >= 0
    for number, (measurement, (row, timed)) in enumerate(zip(found, order, strict=True)):
        check(measurement, row, timed)
        if not timed:
            continue
        if previous is None:
            assert measurement.time == max(0, row.time) // 10**9
        else:
            assert measurement.delta == min((row.time - previous) // 10**9, 2**32 - 1)
            exact = exact and measurement.delta < 2**32 - 1  # a cut delta shifts all later times
            if exact:
                assert -number <= measurement.time - row.time // 10**9 <= 0
        previous = row.time


@pytest.mark.parametrize("six", [0.0, 1.0])
def test_sequences_that_are_cut_or_padded_lose_the_last_measurement_at_most(six):
    count = 30
    made = usual(64 * count, six=six)
    out = fields(count)
    tokenize_windows(prepared(made, count), np.arange(count), 0, 0, out)
    for i in range(count):
        order = reference_measurements(made[64 * i : 64 * (i + 1)], i, 0, 0)
        found = decode(out["inputs"][i])
        tokens = reference_tokens(made[64 * i : 64 * (i + 1)], i, 0, 0)
        starts = [place for place, token in enumerate(tokens) if token == v.START]
        whole = sum(end <= LENGTH for end in [*starts[1:], len(tokens)])
        assert whole <= len(found) <= whole + 1  # one more, if just its time is cut off
        for measurement, (row, timed) in zip(found[:-1], order, strict=False):
            check(measurement, row, timed)


def test_padding_alone_is_nothing():
    assert decode([]) == decode(np.zeros(LENGTH, np.int32)) == []


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([v.SRC4], "token 1 .SrcIPv4. at place 0: a sequence begins with MeasurementStart"),
        ([0, 99], "token 99 at place 1: no block begins with it"),
        ([0, v.THROUGHPUT], r"token 9 \(Throughput\)"),
        ([0, v.RTT, v.FAILED, 11], r"token 10 \(Failed\) at place 2: a byte"),
        ([0, v.FAILED, v.FAILED], "the measurement has a result already"),
        ([0, v.FAILED, 0, v.FAILED], "at place 0: the measurement that begins here is not comp"),
        ([0, v.RTT, 11, 267], "token 267 at place 3: a byte"),
    ],
)
def test_tokens_that_nobody_wrote_are_refused(tokens, message):
    with pytest.raises(DataError, match=message):
        decode(tokens)
