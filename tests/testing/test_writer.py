"""Records, shards and folders; the wire encoding against plain twins."""

import io
import os
import struct
import weakref

import crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DatasetError, UsageError
from headrace.testing import features as f
from headrace.testing import write_dataset
from headrace.testing.writer import (
    encode_example,
    encode_varints,
    masked_crc,
    staged,
    varint,
    write_record,
    write_shard,
)

FEATURES = f.FeaturesDict({"steps": f.Steps(f.FeaturesDict({"x": f.Scalar("int64")}))})
EPISODE = {"steps": {"x": [1, 2, 3]}}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_record_is_framed_by_its_length_and_two_masked_checksums():
    file = io.BytesIO()
    assert write_record(file, [b"hea", b"", b"drace"]) == 8
    data = file.getvalue()
    length, crc = struct.unpack("<QI", data[:12])
    assert length == 8
    assert crc == masked_crc(crc32c.crc32c(data[:8]))
    assert data[12:20] == b"headrace"
    assert struct.unpack("<I", data[20:]) == (masked_crc(crc32c.crc32c(b"headrace")),)


def test_the_mask_is_the_published_one():
    # CRC-32C of "123456789" is 0xE3069283; rotated right by 15 and offset.
    crc = crc32c.crc32c(b"123456789")
    assert crc == 0xE3069283
    assert masked_crc(crc) == (((crc >> 15) | (crc << 17)) % 2**32 + 0xA282EAD8) % 2**32


def test_episodes_are_taken_one_at_a_time_and_let_go(tmp_path):
    class Episode(dict):
        """A dict that can be watched."""

    made = []

    def stream():
        for _ in range(5):
            assert sum(watched() is not None for watched in made) <= 1
            episode = Episode(EPISODE)
            made.append(weakref.ref(episode))
            yield episode
            del episode

    report = write_shard(tmp_path / "shard", FEATURES, stream())
    assert report.records == len(made) == 5
    assert (tmp_path / "shard").stat().st_size == report.bytes + 5 * 16


def broken():
    yield EPISODE
    raise RuntimeError("no more episodes")


def test_a_failed_dataset_leaves_nothing_behind(tmp_path):
    target = tmp_path / "mine" / "1.0.0"
    with pytest.raises(RuntimeError):
        write_dataset(target, FEATURES, {"train": [broken()]})
    assert not target.parent.exists()


def test_a_failed_rewrite_keeps_the_old_dataset(tmp_path):
    target = tmp_path / "mine" / "1.0.0"
    write_dataset(target, FEATURES, {"train": [[EPISODE]]})
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    with pytest.raises(RuntimeError):
        write_dataset(target, FEATURES, {"train": [[EPISODE, EPISODE], broken()]})
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    assert names(target.parent) == ["1.0.0"]


def test_a_dataset_appears_only_when_its_metadata_is_complete(tmp_path):
    target = tmp_path / "mine" / "1.0.0"
    with staged(target) as folder:
        (folder / "shard").write_bytes(b"...")
        assert not target.exists()
        assert folder.name.startswith(".1.0.0.incomplete-")
    assert names(target) == ["shard"]
    assert names(target.parent) == ["1.0.0"]


def test_what_a_killed_run_left_is_swept_away_and_a_living_ones_is_not(tmp_path):
    target = tmp_path / "mine" / "1.0.0"
    with staged(target) as living:
        dead = living.with_name(living.name.replace(f"-{os.getpid()}-", "-99999999-"))
        dead.mkdir()
        with staged(target.with_name("2.0.0")):
            assert dead.exists()  # of another version
        with staged(target):
            assert not dead.exists()
            assert living.exists()


def test_a_full_disk_is_named(tmp_path):
    (tmp_path / "shard").symlink_to("/dev/full")
    with pytest.raises(DatasetError, match=r"full.*shard"):
        write_shard(tmp_path / "shard", FEATURES, [EPISODE])


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "mine").write_text("a file in the way")
    with pytest.raises(DatasetError, match=r"mine/1\.0\.0"):
        write_dataset(tmp_path / "mine" / "1.0.0", FEATURES, {"train": [[EPISODE]]})


# -- the wire encoding ----------------------------------------------------------------------------


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
    with pytest.raises(UsageError, match=r"\(3,\).*\(2,\).*steps/a"):
        encode_example(features, {"steps": {"a": [[1, 2, 3]]}})
