"""Rows to columns: bad input, dictionaries, and the parts that stand in for Python's own."""

import hashlib
import math
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.network_plain import Row
from headrace.errors import DataError, UnknownFieldError, UsageError
from headrace.recipes.network import COLUMNS, Findings, prepare, survey
from headrace.recipes.network.orders import ORDERS3, ORDERS4, md5_heads, shuffle_codes
from headrace.recipes.network.vocabulary import decode_rtt, encode_rtt
from tests.recipes.network.made_rows import NOW, table

GOOD = Row(NOW, "10.0.0.1", "10.0.0.2", 4, 1.0)


def with_column(name, values, rows=3):
    made = table([GOOD] * rows)
    return made.set_column(made.column_names.index(name), name, values)


def same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert np.array_equal(one[name], other[name])


# -- the parts ---------------------------------------------------------------------------------


def test_shuffles_are_those_of_pythons_random():
    rng = random.Random(0)
    seeds = [0, 1, 2**31, 2**32 - 1, *(rng.getrandbits(32) for _ in range(6000))]
    for seed, code in zip(seeds, shuffle_codes(np.array(seeds, np.uint32)).tolist(), strict=True):
        three, four = [0, 1, 2], [0, 1, 2, 3]
        random.Random(seed).shuffle(three)
        random.Random(seed).shuffle(four)
        assert (ORDERS3[code % 6], ORDERS4[code // 6]) == (tuple(three), tuple(four))


def test_a_seed_that_needs_many_numbers_is_shuffled_all_the_same(monkeypatch):
    seeds = np.arange(500, dtype=np.uint32)
    expected = shuffle_codes(seeds)
    monkeypatch.setattr("headrace.recipes.network.orders._DRAWS", 4)  # most need more
    assert np.array_equal(shuffle_codes(seeds), expected)


def test_digests_are_those_of_hashlib():
    rng = random.Random(0)
    texts = [rng.randbytes(size) for size in range(200)] + [b"", b"10.0.0.1|::|0"]
    data = np.frombuffer(b"".join(texts), np.uint8)
    ends = np.cumsum([0, *map(len, texts)])
    expected = [int.from_bytes(hashlib.md5(text).digest()[:4], "big") for text in texts]
    assert md5_heads(data, ends).tolist() == expected


@settings(max_examples=300)
@given(st.floats(0, 1e9))
@example(0.0)
@example(1.0239999)
@example(2.048)
def test_round_trip_times_come_back_within_a_thousandth_or_a_microsecond(rtt):
    back = float(decode_rtt(encode_rtt(np.array([rtt])))[0])
    kept = max(rtt, 0.001)
    assert back <= kept
    assert kept - back < max(0.001 * kept, 0.001)


def test_failed_and_endless_times_have_codes_too():
    code = encode_rtt(np.array([-1.0, -0.0, math.nan, math.inf, -math.inf, 1e308, 5e-324]))
    assert code.tolist() == [0, 1, 0, 0, 0, 0xFFFF, 1]
    assert np.isnan(decode_rtt(code[[0]]))


# -- bad input ---------------------------------------------------------------------------------


def test_a_missing_column_is_named_with_those_there_are():
    made = table([GOOD]).rename_columns(["when", "src_addr", "dst_addr", "ip_version", "rtt"])
    with pytest.raises(
        UnknownFieldError, match=r"no column 'event_time'.*there are when, src_addr"
    ):
        prepare(made)


def test_other_columns_are_ignored_and_chunks_and_dictionaries_make_no_difference():
    rows = [GOOD, Row(NOW + 5, None, "10.0.0.9", 4, -1.0), Row(NOW + 9, "::1", "", 6, None)]
    made = table(rows)
    plain = prepare(made)
    coded = made
    for name in ("src_addr", "dst_addr"):
        place = made.column_names.index(name)
        coded = coded.set_column(place, name, made.column(name).dictionary_encode())
    same(prepare(coded), plain)
    same(prepare(pa.concat_tables([made.slice(0, 1), made.slice(1)])), plain)
    same(prepare(made.append_column("probe", pa.array([1, 2, 3]))), plain)
    same(prepare(pa.concat_tables([made, made]).slice(3)), plain)
    large = made.set_column(1, "src_addr", made.column("src_addr").cast(pa.large_string()))
    same(prepare(large), plain)


def test_times_of_other_units_and_zones_are_the_same_moments():
    plain = prepare(table([GOOD]))
    for kind in (pa.timestamp("s", "UTC"), pa.timestamp("ms", "Europe/Paris"), pa.timestamp("us")):
        moment = table([GOOD]).column("event_time").cast(kind)
        same(prepare(with_column("event_time", moment, rows=1)), plain)


def test_no_rows_are_no_columns_entries():
    assert {len(values) for values in prepare(table([])).values()} == {0}


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("src_addr", pa.array(["10.0.0.1", "10.0.0.300", None]),
         r"src_addr of row 101 is '10.0.0.300': no IP address \[field src_addr\]\. Mend or drop"),
        ("dst_addr", pa.array([None, "", "2001:db8::1"]),
         r"dst_addr of row 102 is '2001:db8::1': IPv6, while ip_version is 4"),
        ("dst_addr", pa.array(["10.0.0.1\0", "", ""]), "dst_addr of row 100 is .*no IP address"),
        ("src_addr", pa.array([1, 2, 3]), "src_addr holds int64, not text"),
        ("ip_version", pa.array([4, 5, 4]), "ip_version of row 101 is 5: neither 4 nor 6"),
        ("ip_version", pa.array([4, 4, None]), "ip_version of row 102 is null"),
        ("ip_version", pa.array(["4", "4", "4"]), "ip_version holds string, which is not int64"),
        ("event_time", pa.array([1, None, 3], pa.timestamp("ns")),
         "event_time of row 101 is null"),
        ("event_time", pa.array([1, 2, 3]), "event_time holds int64, not timestamps"),
        ("event_time", pa.array([1, 2, 2**62], pa.timestamp("s")), "does not fit nanoseconds"),
        ("rtt", pa.array(["1", "2", "3"]), "rtt holds string, which is not double"),
    ],
)  # fmt: skip
def test_what_cannot_be_tokens_is_named_by_row_column_and_value(column, values, message):
    with pytest.raises(DataError, match=message):
        prepare(with_column(column, values), first_row=100)


def test_addresses_that_are_none_may_be_taken_as_empty_and_are_counted():
    bad = with_column("src_addr", pa.array(["nonsense", "::1", "10.0.0.1"]))
    columns = prepare(bad, bad_addresses="empty")
    assert columns["bytes"][:, :16].any(axis=1).tolist() == [False, False, True]
    assert survey(bad).bad_addresses == 2
    with pytest.raises(UsageError, match="bad_addresses is 'skip'"):
        prepare(bad, bad_addresses="skip")


def test_zones_of_addresses_are_left_out():
    rows = [Row(NOW, "fe80::1%eth0", "fe80::1", 6, 1.0)]
    columns = prepare(table(rows))
    assert columns["bytes"][0, :16].tolist() == columns["bytes"][0, 16:32].tolist()


def test_a_survey_counts_what_is_odd_and_adds_up():
    rows = [
        GOOD,
        Row(NOW - 1, None, "", 4, -3.0),
        Row(-5, "10.0.0.1", None, 4, math.nan),
        Row(-4, "10.0.0.1", "10.0.0.1", 4, None),
    ]
    found = survey(table(rows))
    assert found == Findings(
        rows=4, no_source=1, no_destination=2, failed=1, not_a_time=2, before_1970=2, backwards=2
    )
    assert str(found + found).splitlines()[:2] == [
        "8 rows", "  2 without a source address (all zeros)",
    ]  # fmt: skip


def test_only_the_columns_of_the_schema_are_needed():
    assert set(table([GOOD]).column_names) == set(COLUMNS)
