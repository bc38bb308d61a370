"""The one list of loader options: checks, forms, and what must follow it."""

from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest

import headrace as hr
from headrace.config.typed import plain, typed
from headrace.engine.machine import ranks_on_node
from headrace.errors import UsageError
from headrace.loader import options as module


@pytest.mark.parametrize(
    ("options", "keywords"),
    [(module.LoaderOptions, module.LoaderFields), (module.RowOptions, module.RowFields)],
)
def test_the_keywords_for_editors_are_the_fields_and_nothing_else(options, keywords):
    assert get_type_hints(keywords) == {
        field.name: get_type_hints(options)[field.name] for field in fields(options)
    }


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": 2.5}, "batch_size is 2.5"),
        ({"batch_size": "8"}, "batch_size is '8'"),
        ({"batch_size": True}, "batch_size is True"),
        ({"batch_size": None}, "batch_size is None"),
        ({"image_size": (0, 32)}, "image_size is 0"),
        ({"image_size": (96, 96, 3)}, r"image_size is \(96, 96, 3\)"),
        ({"image_size": "256"}, "image_size is '256'"),
        ({"image_size": (96.5, 96)}, "image_size"),
        ({"seed": "0"}, "seed is '0'"),
        ({"workers": "all"}, "workers is 'all'"),
        ({"memory": ["2GiB"]}, "memory"),
        ({"rank": "0", "world_size": "1"}, "rank is '0'"),
        ({"frames": 2}, "frames is 2"),
        ({"action_chunk": "4"}, "action_chunk is '4'"),
        ({"workers": -1}, "workers is -1"),
        ({"memory": "lots"}, "lots"),
        ({"keep_free": "some"}, "some"),
        ({"metadata": "all"}, "metadata is 'all'"),
        ({"on_error": "ignore"}, "on_error is 'ignore'"),
        ({"resize": "bicubic"}, "bicubic"),
        ({"frames": "ends"}, "frames is 'ends'"),
        ({"action": "mean"}, "action is 'mean'"),
        ({"action_chunk": 0}, "action_chunk is 0"),
        ({"action": "sum", "action_chunk": 4}, "action_chunk is 4"),
        ({"rank": 1}, "world_size is None"),
        ({"rank": 2, "world_size": 2}, "rank 2"),
    ],
)
def test_a_wrong_value_is_named_where_the_options_are_made(given, value):
    with pytest.raises(UsageError, match=value) as error:
        hr.LoaderOptions(**given)
    assert error.value.remedy


def test_numbers_of_numpy_and_lists_are_accepted():
    given = {"batch_size": np.int64(8), "seed": np.uint32(3), "image_size": [96, np.int32(128)]}
    options = hr.LoaderOptions(**given)
    assert (options.batch_size, options.seed, options.size) == (8, 3, (96, 128))
    assert type(options.batch_size) is int
    assert hr.LoaderOptions(frames=hr.WindowSpec("all")).window.mode == "all"


@pytest.mark.parametrize(
    "make",
    [
        lambda mixture: hr.Loader(mixture, batch_size="8"),
        lambda mixture: hr.Loader(mixture, image_size=(32, 32, 3)),
        lambda mixture: hr.Loader(mixture, {"batch_size": 8}),
        lambda mixture: hr.Loader(mixture.to_dict()),
        lambda mixture: hr.Loader(mixture, hr.RowOptions()),
        lambda _: hr.RowLoader("nowhere", batch_size="8"),
        lambda _: hr.RowLoader("nowhere", {"batch_size": 8}),
        lambda _: hr.RowOptions(open_pieces="8"),
        lambda _: hr.RowOptions(shuffle="some"),
    ],
)
def test_a_wrong_type_is_refused_with_the_remedy(mixture, make):
    with pytest.raises(UsageError) as raised:
        make(mixture)
    assert raised.value.remedy


def test_options_are_read_from_yaml_values_and_written_back():
    values = {"batch_size": 8, "image_size": [240, 320], "memory": "2GiB", "workers": 0}
    options = typed(hr.LoaderOptions, {**values, "frames": {"mode": "stride", "stride": 2}})
    assert options.size == (240, 320)
    assert options.memory_bytes == 2 << 30
    assert options.window == hr.WindowSpec("stride", stride=2)
    assert typed(hr.LoaderOptions, plain(options)) == options
    assert typed(hr.LoaderOptions, {"frames": "single", "action_chunk": 16}).window.single


def test_an_unknown_option_names_the_nearest(mixture):
    with pytest.raises(UsageError, match="'worker'") as error:
        hr.Loader(mixture, worker=3)
    assert "'workers'" in error.value.remedy


def test_a_loader_takes_options_fields_or_both(mixture):
    options = hr.LoaderOptions(batch_size=3, image_size=16, keep_free=0, workers=0)
    with hr.Loader(mixture, options, batch_size=5) as loader:
        assert len(next(loader)) == 5
        assert loader.options.image_size == 16
        assert (loader.options.rank, loader.options.world_size) == (0, 1)


@pytest.mark.parametrize(
    "keys",
    [
        ("RANK", "WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
        ("LOCAL_RANK", "WORLD_SIZE"),
    ],
)
def test_the_rank_comes_from_the_environment_unless_it_is_given(monkeypatch, keys):
    for key, value in zip(keys, ("2", "4"), strict=True):
        monkeypatch.setenv(key, value)
    assert module.rank_and_world_size() == (2, 4)
    assert module.rank_and_world_size(0, 1) == (0, 1)


def test_a_command_in_the_script_of_a_slurm_job_is_one_rank(monkeypatch):
    for key, value in {"PROCID": "0", "NTASKS": "4", "TASKS_PER_NODE": "4"}.items():
        monkeypatch.setenv(f"SLURM_{key}", value)
    assert module.rank_and_world_size() == (0, 1)
    assert ranks_on_node() == 1


@pytest.mark.parametrize("kind", [hr.LoaderOptions, hr.RowOptions])
def test_every_option_has_a_type_a_default_and_a_meaning_in_help_and_in_the_table(kind):
    page = (Path(__file__).parents[2] / "docs" / "reference" / "loader.md").read_text()
    listed = module.options_of(kind)
    assert [name for name, *_ in listed] == [field.name for field in fields(kind)]
    table = module.options_table(kind)
    for owner in (kind, hr.Loader if kind is hr.LoaderOptions else hr.RowLoader):
        for name, type_name, default, meaning in listed:
            assert f"{name}: {type_name} = {default}\n" in owner.__doc__
            assert meaning[:40] in owner.__doc__
            row = f"| `{name}` | {type_name} | `{default}` | {meaning} |"
            assert row in table
            assert row in page, f"docs/reference/loader.md lacks this row:\n{row}"
