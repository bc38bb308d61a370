import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import RecordError
from headrace.formats.tfrecord import (
    FOOTER,
    HEADER,
    check_payload,
    masked_crc,
    record_places,
)


def framed(*payloads):
    out = b""
    for payload in payloads:
        length = struct.pack("<Q", len(payload))
        out += length + struct.pack("<I", masked_crc(length))
        out += payload + struct.pack("<I", masked_crc(payload))
    return out


def places(data):
    return list(record_places(lambda at, n: data[at : at + n], len(data)))


def test_the_masked_checksum_is_that_of_the_format():
    # CRC-32C of "123456789" is 0xE3069283 (the polynomial's published check value).
    crc = 0xE3069283
    assert masked_crc(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@given(st.lists(st.binary(max_size=50), max_size=6))
def test_every_record_is_found_where_it_was_written(payloads):
    data = framed(*payloads)
    found = places(data)
    assert [data[offset : offset + length] for offset, length in found] == payloads
    for offset, length in found:
        footer = data[offset + length : offset + length + FOOTER]
        check_payload(data[offset : offset + length], footer)


@given(st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=4), st.data())
def test_a_flipped_bit_is_found_in_the_headers_or_by_the_payload_checksum(payloads, data):
    whole = bytearray(framed(*payloads))
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    whole[bit // 8] ^= 1 << bit % 8
    damaged = bytes(whole)
    try:
        found = places(damaged)
    except RecordError:
        return
    with pytest.raises(RecordError):
        for o, n in found:
            check_payload(damaged[o : o + n], damaged[o + n : o + n + FOOTER])


@given(st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=4), st.data())
def test_a_truncated_file_raises_at_the_record_that_is_cut(payloads, data):
    whole = framed(*payloads)
    cut = data.draw(st.integers(1, len(whole) - 1))
    ends = [0]
    for payload in payloads:
        ends.append(ends[-1] + HEADER + len(payload) + FOOTER)
    if cut in ends:
        assert len(places(whole[:cut])) == ends.index(cut)
        return
    with pytest.raises(RecordError) as caught:
        places(whole[:cut])
    assert caught.value.offset == max(end for end in ends if end <= cut)
    assert caught.value.remedy


def test_a_length_that_points_past_the_end_names_both_sizes():
    length = struct.pack("<Q", 10**15)
    data = length + struct.pack("<I", masked_crc(length)) + b"x" * 40
    with pytest.raises(RecordError, match=r"1,000,000,000,000,000 bytes .*52 bytes"):
        places(data)


@pytest.mark.parametrize(("start", "kind"), [(b"\x1f\x8b", "gzip"), (b"\x78\x9c", "zlib")])
def test_a_compressed_file_is_recognised(start, kind):
    with pytest.raises(RecordError, match=kind):
        places(start + bytes(100))


def test_only_headers_are_read():
    data = framed(b"a" * 1000, b"b" * 1000)
    requested = []

    def read(at, length):
        requested.append(length)
        return data[at : at + length]

    assert len(list(record_places(read, len(data)))) == 2
    assert requested == [HEADER, HEADER]


def test_an_empty_file_has_no_records():
    assert places(b"") == []
