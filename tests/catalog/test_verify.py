"""Verifying a dataset, and continuing without its damaged episodes."""

import os

import numpy as np
import pytest

import headrace as hr
from headrace import errors
from headrace.catalog.check import quarantine, verify
from headrace.formats.tfrecord import masked_crc
from headrace.testing import read_tag
from tests.catalog.test_bad_input import records, rewrite, shards


def test_an_intact_dataset_is_ok_and_every_image_decodes(oxe):
    for folder in hr.find_datasets(oxe)[::7]:
        catalog = hr.Catalog.open(folder)
        verdict = verify(folder, decode="all")
        assert verdict.ok
        assert verdict.findings == ()
        assert verdict.records == len(catalog)
        assert verdict.steps == catalog.steps.sum()
        assert verdict.frames_decoded == catalog.steps.sum() * len(catalog.schema.cameras)
        assert verdict.bytes == sum(stamp.size for stamp in catalog.manifest.shards)


def test_damage_is_reported_with_file_offset_and_episode(bridge):
    shard = shards(bridge)[-1]
    number = len(records(shard)) - 1
    offset, length = records(shard)[number]

    def change(data):
        data[offset + length // 2] ^= 1

    rewrite(shard, change)
    verdict = verify(bridge)
    (finding,) = verdict.findings
    assert (finding.file, finding.episode, finding.offset) == (shard.name, number, offset)
    assert "checksum" in finding.problem
    assert verdict.damaged == 1


def test_a_verdict_needs_no_catalog_and_leaves_none(bridge):
    os.truncate(shards(bridge)[0], 100)
    assert not verify(bridge).ok
    assert not (bridge / ".headrace").exists()


def test_a_quarantined_episode_is_left_out_and_the_others_keep_their_numbers(bridge):
    whole = hr.Catalog.open(bridge)
    numbers = whole.episodes("train").tolist()
    victim = whole.info(numbers[1])

    def change(data):
        data[victim.offset + victim.length // 2] ^= 1

    rewrite(bridge / victim.file, change)
    verdict = verify(bridge)
    assert quarantine(verdict) == 1
    catalog = hr.Catalog.open(bridge)
    assert catalog.quarantined == {victim.number}
    assert catalog.episodes("train").tolist() == [numbers[0], *numbers[2:]]
    # Split bounds count the episode that is left out, so what is train and what is not stays.
    assert catalog.episodes("train[2:]").tolist() == numbers[2:]
    with pytest.raises(errors.SplitError, match="quarantined"):
        catalog.episodes("train[1:2]")
    assert quarantine(verify(bridge)) == 1


def test_a_shard_that_is_restored_is_no_longer_quarantined(bridge):
    shard = shards(bridge)[0]
    good = shard.read_bytes()
    shard.write_bytes(good[: len(good) // 2])
    with pytest.raises(errors.RecordError):
        hr.Catalog.open(bridge)
    damaged = hr.Catalog.open(bridge, on_damage="quarantine")
    assert len(damaged.quarantined) >= 1
    shard.write_bytes(good)
    os.utime(shard, ns=(7, 7))
    assert hr.Catalog.open(bridge).quarantined == frozenset()


def test_missing_and_broken_shards_can_be_left_out_and_the_rest_is_read(bridge):
    whole = hr.Catalog.open(bridge)
    first = whole.manifest.shards[0]
    (bridge / first.file).unlink()
    catalog = hr.Catalog.open(bridge, on_damage="quarantine")
    assert len(catalog) == len(whole)
    assert catalog.quarantined == set(range(first.episodes))
    kept = [e for e in range(len(catalog)) if e not in catalog.quarantined]
    for episode in kept:
        ours, theirs = catalog.frame(episode, 1), whole.frame(episode, 1)
        np.testing.assert_array_equal(ours, theirs)
        assert read_tag(ours).step == 1
    # It opens again as it is, without asking each time.
    assert hr.Catalog.open(bridge).quarantined == catalog.quarantined


def test_a_record_that_is_damaged_inside_can_be_left_out_while_indexing(bridge):
    shard = shards(bridge)[0]
    offset, _ = records(shard)[0]

    def change(data):
        data[offset + 1] ^= 0xFF

    rewrite(shard, change)
    catalog = hr.Catalog.open(bridge, on_damage="quarantine")
    assert len(catalog.quarantined) == 1
    assert catalog.manifest.quarantine[0].file == shard.name
    assert catalog.manifest.quarantine[0].problem


def test_a_shard_that_was_replaced_by_another_intact_one_is_noticed(bridge):
    """As a copy that keeps times does: the catalog takes it for the file that it knows."""
    catalog = hr.Catalog.open(bridge)
    assert verify(bridge, decode="none").catalog_checksums
    shard = bridge / catalog.manifest.shards[0].file
    stat, where = shard.stat(), catalog.place(0, 1)
    (offset, length), *_ = records(shard)

    def change(data):
        data[where.offset + where.length // 2] ^= 1
        payload = bytes(data[offset : offset + length])
        data[offset + length : offset + length + 4] = masked_crc(payload).to_bytes(4, "little")

    rewrite(shard, change)
    os.utime(shard, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(errors.ImageError):
        catalog.frame(0, 1)
    verdict = verify(bridge, decode="none")
    (finding,) = verdict.findings
    assert (finding.file, finding.episode, finding.offset) == (shard.name, 0, offset)
    assert finding.damage
    assert str(catalog.folder) in finding.problem


def test_a_verdict_says_whether_there_are_checksums(bridge):
    assert verify(bridge, decode="none").catalog_checksums is None
    hr.Catalog.open(bridge, quick=True)
    assert verify(bridge, decode="none").catalog_checksums is False


def test_verification_in_worker_processes_finds_the_same(bridge, monkeypatch):
    rewrite(shards(bridge)[0], lambda data: data.__setitem__(500, data[500] ^ 1))
    alone = verify(bridge, decode="all")
    monkeypatch.setattr("headrace.catalog.shards.IN_PROCESS_BYTES", 0)
    assert verify(bridge, decode="all") == alone
    assert not alone.ok


def test_an_image_of_another_size_than_declared_is_a_note_and_not_damage(bridge):
    import json

    path = bridge / "features.json"
    tree = json.loads(path.read_text())
    steps = tree["featuresDict"]["features"]["steps"]["sequence"]["feature"]
    observation = steps["featuresDict"]["features"]["observation"]["featuresDict"]["features"]
    observation["image"]["image"]["shape"]["dimensions"][0] = "481"
    path.write_text(json.dumps(tree))
    verdict = verify(bridge)
    assert verdict.ok
    assert {finding.damage for finding in verdict.findings} == {False}
    assert "480x640" in verdict.findings[0].problem
    assert "481x640" in verdict.findings[0].problem
