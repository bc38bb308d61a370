"""headrace reads every value of a dataset exactly as the real TensorFlow Datasets does."""

import numpy as np
import pytest

import headrace as hr
from headrace.config.registry import known_datasets
from headrace.testing import odd as odd_preset
from headrace.testing import oxe29
from tests import tfds_reading

pytestmark = [pytest.mark.tfds, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

ODD = [dataset.dir for dataset in odd_preset.datasets().values()]


def agrees(folder, splits=None):
    """Compare every value of every episode; how many values and images were compared."""
    catalog = hr.Catalog.open(folder)
    values = images = 0
    for split in splits or catalog.splits:
        numbers = catalog.episodes(split) if sum(s.episodes for s in catalog.splits[split]) else []
        for decode in (False, True):
            theirs = list(tfds_reading.episodes(folder, split, decode)) if len(numbers) else []
            assert len(theirs) == len(numbers)
            for number, (episode, steps) in zip(numbers, theirs, strict=True):
                assert catalog.info(number).steps == len(steps)
                counts = _same_episode(catalog, int(number), episode, steps, decode)
                values, images = values + counts[0], images + counts[1]
    return values, images


def _same_episode(catalog, number, episode, steps, decode):
    values = images = 0
    for field in catalog.schema.fields:
        where = f"{catalog.name} episode {number} {field.key}"
        if decode and not field.is_camera:
            continue
        if not field.per_step:
            ours, theirs = catalog.read(number, field.key), episode[field.key]
            _same(ours, theirs, field, where)
            values += 1
        elif field.is_camera:
            for t, step in enumerate(steps):
                theirs = step[field.name].numpy()
                if decode:
                    ours = catalog.frame(number, t, field.key)
                    assert ours.dtype == theirs.dtype, where
                    np.testing.assert_array_equal(ours, theirs, err_msg=where)
                else:
                    assert catalog.encoded(number, t, field.key) == theirs, where
                images += 1
        else:
            column = catalog.read(number, field.key)
            assert len(column) == len(steps), where
            for t, step in enumerate(steps):
                _same(column[t], step[field.name], field, f"{where} step {t}")
                _same(catalog.read(number, field.key, t, t + 1)[0], step[field.name], field, where)
                values += 1
    return values, images


def _same(ours, theirs, field, where):
    if field.nesting + field.per_step > 1 and hasattr(theirs, "to_list"):
        assert tfds_reading.plain_ragged(ours) == tfds_reading.plain(theirs), where
    elif field.ragged and isinstance(ours, list):
        assert [tfds_reading.plain(o) for o in ours] == [tfds_reading.plain(t) for t in theirs], (
            where
        )
    else:
        assert tfds_reading.plain(ours) == tfds_reading.plain(theirs), where


@pytest.mark.parametrize("name", list(known_datasets()))
def test_a_synthesized_dataset_is_read_as_tfds_reads_it(oxe, name):
    values, images = agrees(oxe / known_datasets()[name].folder)
    assert values > 50
    assert images > 20


@pytest.mark.parametrize("name", ODD)
def test_an_odd_dataset_is_read_as_tfds_reads_it(odd, name):
    values, _ = agrees(odd / name / "1.0.0")
    assert values > 10


def test_a_real_dataset_is_read_as_tfds_reads_it(real_bridge):
    values, images = agrees(real_bridge)
    assert images == 2 * 2 * 250 * 4
    assert values > 2500


@pytest.mark.parametrize("name", ODD)
def test_an_odd_dataset_written_by_tfds_itself_is_read_as_tfds_reads_it(tmp_path, name):
    dataset = next(d for d in odd_preset.datasets().values() if d.dir == name)
    folder = tfds_reading.write_with_tfds(tmp_path, dataset, seed=11)
    values, _ = agrees(folder)
    assert values > 10


@pytest.mark.parametrize("name", ["rt1", "droid", "bc_z", "language_table", "uiuc_d3field"])
def test_a_dataset_of_the_mixture_written_by_tfds_itself_is_read_as_tfds_reads_it(tmp_path, name):
    dataset = oxe29.datasets()[name]
    folder = tfds_reading.write_with_tfds(tmp_path, dataset, seed=11, max_steps=4)
    values, images = agrees(folder)
    assert values > 50
    assert images > 10
