"""Every kind of bad input ends in one clear error of headrace's own, with place and remedy."""

import gzip
import json
import os
import re
import struct
import zlib

import cv2
import numpy as np
import pytest

import headrace as hr
from headrace import errors
from headrace.catalog.check import verify
from headrace.formats.tfrecord import masked_crc
from headrace.testing import features as f
from headrace.testing import write_dataset


def shards(folder):
    return sorted(folder.glob("*.tfrecord-*"))


def rewrite(path, change):
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(bytes(data))


def records(path):
    """(payload offset, length) of a shard, by the plainest means."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        found.append((at + 12, length))
        at += 12 + length + 4
    return found


def fails(folder, kind, *words, **options):
    """Opening raises `kind` with these words, a place and a remedy, and leaves no catalog."""
    with pytest.raises(kind) as caught:
        hr.Catalog.open(folder, **options)
    error = caught.value
    for word in words:
        assert word in str(error)
    assert error.file, "the error does not name a file"
    assert error.remedy, "the error does not say what to do"
    assert not (folder / ".headrace" / "manifest.json").exists()
    return error


def test_a_truncated_shard_names_file_and_offset(bridge):
    shard = shards(bridge)[0]
    offset, length = records(shard)[-1]
    os.truncate(shard, offset + length // 2)
    error = fails(bridge, errors.RecordError, str(shard), "bridge 0.1.0")
    assert error.offset == offset - 12


def test_a_record_length_past_the_end_with_a_right_checksum_is_noticed(bridge):
    length = struct.pack("<Q", 1 << 40)

    def change(data):
        data[:12] = length + struct.pack("<I", masked_crc(length))

    rewrite(shards(bridge)[0], change)
    fails(bridge, errors.RecordError, "1,099,511,627,776")


def test_a_flipped_bit_in_a_record_header_is_noticed(bridge):
    shard = shards(bridge)[0]

    def change(data):
        data[3] ^= 4

    rewrite(shard, change)
    assert fails(bridge, errors.RecordError, "checksum").offset == 0


def test_a_flipped_bit_in_the_structure_of_a_record_is_noticed_while_indexing(bridge):
    shard = shards(bridge)[0]
    offset, _ = records(shard)[0]

    def change(data):
        data[offset] ^= 0x20

    rewrite(shard, change)
    error = fails(bridge, errors.RecordError, "tf.train.Example", quick=True)
    assert (error.episode, error.offset is None) == (0, False)
    error = fails(bridge, errors.RecordError, "checksum")
    assert (error.episode, error.offset) == (0, offset)


def test_flipped_bits_anywhere_are_found_by_verify(bridge):
    shard = shards(bridge)[0]
    size = shard.stat().st_size
    original = shard.read_bytes()
    for position in np.linspace(0, size - 1, 25).astype(int).tolist():
        data = bytearray(original)
        data[position] ^= 1 << position % 8
        shard.write_bytes(bytes(data))
        verdict = verify(bridge)
        assert not verdict.ok, f"a flipped bit at {position} of {size} was not found"
        assert {finding.file for finding in verdict.findings} == {shard.name}
    shard.write_bytes(original)
    assert verify(bridge).ok


def test_a_missing_shard_is_named(bridge):
    gone = shards(bridge)[1]
    gone.unlink()
    fails(bridge, errors.DatasetError, "1 of", gone.name, "--quarantine")


def test_an_extra_shard_is_named(bridge):
    extra = bridge / "bridge-train.tfrecord-00007-of-00099"
    extra.write_bytes(b"")
    fails(bridge, errors.DatasetError, extra.name)


@pytest.mark.parametrize("change", [2, -1])
def test_a_shard_with_another_number_of_records_than_announced_says_both(bridge, change):
    info = json.loads((bridge / "dataset_info.json").read_text())
    split = next(s for s in info["splits"] if s["name"] == "train")
    length = int(split["shardLengths"][0])
    split["shardLengths"][0] = str(length + change)
    (bridge / "dataset_info.json").write_text(json.dumps(info))
    fails(bridge, errors.DatasetError, f"{length} records", f"says {length + change}")


@pytest.mark.parametrize("name", ["dataset_info.json", "features.json"])
def test_missing_metadata_is_named(bridge, name):
    (bridge / name).unlink()
    fails(bridge, errors.DatasetError, name)


@pytest.mark.parametrize("name", ["dataset_info.json", "features.json"])
@pytest.mark.parametrize("content", ["", "{", "[]", '{"name": 3}', "\xff\xfe", "[" * 100_000])
def test_broken_metadata_is_named(bridge, name, content):
    (bridge / name).write_text(content, encoding="latin-1")
    fails(bridge, errors.DatasetError, name)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
@pytest.mark.parametrize("name", ["dataset_info.json", "features.json"])
def test_metadata_that_cannot_be_read_is_named_and_nobody_waits_for_a_pipe(bridge, name, make):
    (bridge / name).unlink()
    make(bridge / name)
    fails(bridge, errors.DatasetError, name)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_shard_that_cannot_be_read_is_named_and_nobody_waits_for_a_pipe(bridge, make):
    shard = shards(bridge)[0]
    shard.unlink()
    make(shard)
    fails(bridge, errors.DatasetError, shard.name)


def test_a_dataset_is_found_below_its_folder_if_it_is_the_only_one(bridge):
    assert hr.Catalog.open(bridge.parent).path == bridge
    other = bridge.parent / "0.2.0"
    other.mkdir()
    (other / "dataset_info.json").write_text("{}")
    with pytest.raises(errors.DatasetError, match=r"0\.1\.0, 0\.2\.0"):
        hr.Catalog.open(bridge.parent)


def test_a_remote_dataset_says_that_it_must_be_local():
    with pytest.raises(errors.DatasetError, match="gs://gresearch/robotics/bridge"):
        hr.Catalog.open("gs://gresearch/robotics/bridge/0.1.0")


@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.write_text("x"), lambda p: p.mkdir()])
def test_a_path_without_a_dataset_is_named(tmp_path, make):
    path = tmp_path / "nothing"
    make(path)
    fails(path, errors.DatasetError, str(path))


def test_a_folder_without_datasets_below_it_says_so(tmp_path):
    with pytest.raises(errors.DatasetError, match=re.escape(str(tmp_path))):
        hr.find_datasets(tmp_path)


def test_a_gzip_compressed_shard_is_recognised(bridge):
    shard = shards(bridge)[0]
    shard.write_bytes(gzip.compress(shard.read_bytes()))
    fails(bridge, errors.RecordError, "gzip", shard.name)


def test_a_format_other_than_tfrecord_is_refused(bridge):
    info = json.loads((bridge / "dataset_info.json").read_text())
    info["fileFormat"] = "array_record"
    (bridge / "dataset_info.json").write_text(json.dumps(info))
    fails(bridge, errors.DatasetError, "array_record")


@pytest.mark.parametrize(
    "template",
    [
        "../{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        "/etc/{SHARD_X_OF_Y}",
        "a/../../{SHARD_X_OF_Y}",
    ],
)
def test_a_template_that_points_outside_the_folder_is_refused(bridge, template):
    info = json.loads((bridge / "dataset_info.json").read_text())
    info["splits"][0]["filepathTemplate"] = template
    (bridge / "dataset_info.json").write_text(json.dumps(info))
    fails(bridge, errors.DatasetError, template)


def test_a_dataset_name_that_points_outside_the_folder_is_refused(bridge):
    info = json.loads((bridge / "dataset_info.json").read_text())
    info["name"] = "../../secret"
    (bridge / "dataset_info.json").write_text(json.dumps(info))
    fails(bridge, errors.DatasetError, "../../secret")


def test_an_unknown_camera_lists_the_known_ones(oxe):
    catalog = hr.Catalog.open(oxe / "droid" / "1.0.1")
    with pytest.raises(errors.UnknownFieldError) as caught:
        catalog.frame(0, 0, camera="exterior_image_3_left")
    for name in ("exterior_image_1_left", "exterior_image_2_left", "wrist_image_left", "droid"):
        assert name in str(caught.value)


def test_an_empty_split_names_dataset_split_and_episode_count(oxe):
    catalog = hr.Catalog.open(oxe / "bridge" / "0.1.0")
    with pytest.raises(errors.SplitError, match=r"train\[:1%\]") as caught:
        catalog.episodes("train[:1%]")
    assert "bridge" in str(caught.value)
    assert "3" in str(caught.value)


@pytest.mark.parametrize(("episode", "t"), [(99, 0), (-1, 0), (0, 1000), (0, -1000)])
def test_an_episode_or_step_that_is_not_there_says_how_many_there_are(oxe, episode, t):
    catalog = hr.Catalog.open(oxe / "bridge" / "0.1.0")
    count = len(catalog) if abs(t) < 1000 else int(catalog.steps[episode])
    with pytest.raises(errors.SelectionError, match=rf"{t or episode}\b.*\b{count}\b"):
        catalog.frame(episode, t)


# -- what is inside records --------------------------------------------------------------------


def dataset_of(tmp_path, field, column, steps=2):
    """A dataset of one episode with one field, given as it lies on disk."""
    target = tmp_path / "own" / "1.0.0"
    features = f.FeaturesDict(
        {"steps": f.Steps(f.FeaturesDict({"x": field, "n": f.Scalar("float32")}))}
    )
    episode = {"steps": {"x": column, "n": np.zeros(steps, np.float32)}}
    write_dataset(target, features, {"train": [[episode]]})
    return target


def png(shape=(4, 6, 3)):
    return cv2.imencode(".png", np.zeros(shape, np.uint8))[1].tobytes()


def huge(encoded):
    """A PNG whose header claims 60,000 x 60,000 pixels, with a right checksum."""
    header = b"IHDR" + struct.pack(">II", 60_000, 60_000) + encoded[24:29]
    return encoded[:12] + header + struct.pack(">I", zlib.crc32(header)) + encoded[33:]


def test_an_image_that_claims_60000_pixels_a_side_is_refused_before_memory_is_taken(tmp_path):
    folder = dataset_of(tmp_path, f.Image((None, None, 3)), [png(), huge(png())])
    catalog = hr.Catalog.open(folder)
    assert catalog.frame(0, 0, "x").shape == (4, 6, 3)
    with pytest.raises(errors.ImageError, match=r"60,?000") as caught:
        catalog.frame(0, 1, "x")
    error = caught.value
    assert (error.dataset, error.episode, error.frame) == ("own 1.0.0", "train/00000/0", 1)
    assert error.file
    assert error.offset
    assert error.remedy
    (finding,) = verify(folder, decode="all").findings
    assert (finding.episode, finding.frame, finding.field) == (0, 1, "steps/x")


def test_an_image_that_is_cut_off_is_an_error_with_its_place(tmp_path):
    folder = dataset_of(tmp_path, f.Image((4, 6, 3)), [png(), png()[:-20]])
    with pytest.raises(errors.ImageError) as caught:
        hr.Catalog.open(folder).frame(0, 1, "x")
    assert caught.value.frame == 1
    assert caught.value.offset
    assert verify(folder, decode="none").ok
    assert not verify(folder, decode="sample").ok


def test_a_zlib_tensor_that_expands_without_bound_is_stopped(tmp_path, monkeypatch):
    field = f.Tensor((4,), "uint8", "zlib")
    good = np.zeros((2, 4), np.uint8)
    folder = dataset_of(tmp_path, field, good)
    assert hr.Catalog.open(folder).read(0, "x").tolist() == good.tolist()
    bomb = zlib.compress(bytes(30_000_000), 9)
    raw = f.FeaturesDict(
        {"steps": f.Steps(f.FeaturesDict({"x": f.Text(), "n": f.Scalar("float32")}))}
    )
    declared = (folder / "features.json").read_bytes()
    episode = {"steps": {"x": [bomb, bomb], "n": np.zeros(2, np.float32)}}
    write_dataset(folder, raw, {"train": [[episode]]})
    (folder / "features.json").write_bytes(declared)
    with pytest.raises(errors.ImageError, match=r"\b4 bytes") as caught:
        hr.Catalog.open(folder).read(0, "x")
    assert caught.value.dataset == "own 1.0.0"
    assert not verify(folder).ok


def test_a_field_that_headrace_cannot_read_says_so_and_the_others_are_read(tmp_path):
    folder = dataset_of(tmp_path, f.Tensor((2,), "float32"), np.ones((2, 2), np.float32))
    tree = json.loads((folder / "features.json").read_text())
    steps = tree["featuresDict"]["features"]["steps"]["sequence"]["feature"]
    steps["featuresDict"]["features"]["sound"] = {"pythonClassName": "x.Audio", "audio": {}}
    (folder / "features.json").write_text(json.dumps(tree))
    catalog = hr.Catalog.open(folder)
    assert catalog.read(0, "x").tolist() == [[1, 1], [1, 1]]
    with pytest.raises(errors.UnknownFieldError, match="sound"):
        catalog.read(0, "sound")


def test_a_camera_that_an_episode_lacks_is_an_error_and_the_others_are_read(tmp_path):
    features = f.FeaturesDict({"steps": f.Steps(f.FeaturesDict({"a": f.Image(), "b": f.Image()}))})
    target = tmp_path / "own" / "1.0.0"
    both = {"steps": {"a": [png(), png()], "b": [png(), png()]}}
    only = f.FeaturesDict({"steps": f.Steps(f.FeaturesDict({"a": f.Image()}))})
    write_dataset(target, features, {"train": [[both]]})
    declared = (target / "features.json").read_bytes()
    write_dataset(target, only, {"train": [[{"steps": {"a": [png(), png()]}}]]})
    (target / "features.json").write_bytes(declared)
    catalog = hr.Catalog.open(target)
    assert catalog.frame(0, 1, "a").shape == (4, 6, 3)
    with pytest.raises(errors.SelectionError, match="'b'") as caught:
        catalog.frame(0, 1, "b")
    assert caught.value.episode == "train/00000/0"
    assert not verify(target).ok
