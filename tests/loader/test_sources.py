"""What opening a mixture finds out and tells: roles, widths, windows, sources left out."""

import dataclasses
import json
import logging

import numpy as np
import pytest

import headrace as hr
from headrace.cli.main import main
from headrace.config.registry import known_datasets
from headrace.errors import UnknownFieldError, UsageError
from headrace.loader.loader import feed_of
from headrace.testing import features as f
from headrace.testing import oxe29
from headrace.testing.writer import write_dataset
from tests.loader.conftest import NAMES, make_mixture


@pytest.fixture
def notices(caplog):
    """The lines that were logged since the last call."""
    caplog.set_level(logging.WARNING, "headrace")

    def lines():
        found = [record.getMessage() for record in caplog.records if record.name == "headrace"]
        caplog.clear()
        return found

    return lines


# -- roles that the files do not have --------------------------------------------------------------


def pruned(feature, keep, key=""):
    """A schema with the fields of `keep` alone."""
    if isinstance(feature, f.FeaturesDict):
        inner = {
            name: pruned(each, keep, f"{key}/{name}" if key else name)
            for name, each in feature.features.items()
        }
        return f.FeaturesDict({name: each for name, each in inner.items() if each is not None})
    if isinstance(feature, f.Steps):
        return f.Steps(pruned(feature.feature, keep, key))
    return feature if key in keep else None


def write_without(root, known, role):
    """A known dataset of two episodes with its camera and roles, but for one role."""
    named = ("camera", "action", "state", "language", "robot")
    keys = {getattr(known, each) for each in named if each != role} - {None}
    keep = {key if key == known.robot else f"steps/{key}" for key in keys}
    made = oxe29.datasets()[known.name]
    made = dataclasses.replace(made, features=pruned(made.features, keep))
    episodes = [made.episode(5, number, 4) for number in range(2)]
    write_dataset(root / known.folder, made.features, {"train": [episodes]})


@pytest.fixture(scope="module")
def lacking(tmp_path_factory):
    """The 29 datasets, each without one of its optional roles: the folder, and which."""
    root = tmp_path_factory.mktemp("lacking")
    gone = {}
    for number, known in enumerate(known_datasets().values()):
        optional = [each for each in ("language", "state", "action") if getattr(known, each)]
        role = "robot" if known.robot else optional[number % len(optional)]
        write_without(root, known, role)
        gone[known.name] = role
    return root, gone


def test_29_sources_that_each_lack_an_optional_role_stream_with_29_warnings(
    lacking, loaders, notices
):
    root, gone = lacking
    assert set(gone.values()) == {"language", "state", "action", "robot"}
    mixture = hr.Mixture.load("oxe29", [f"root={root}", "defaults.split=train"])
    loader = loaders(mixture, batch_size=29, frames="single")
    lines = notices()
    assert len(lines) == 29
    for (name, role), line in zip(gone.items(), lines, strict=True):
        assert line.startswith(f"{name}: ")
        assert f"{role} {getattr(known_datasets()[name], role)!r}" in line
    seen = set()
    while len(seen) < 29:
        batch = next(loader)
        for row, number in enumerate(batch.dataset):
            role = gone[batch.names[number]]
            seen.add(batch.names[number])
            value = getattr(batch, role)[row]
            assert value == "" if role in ("language", "robot") else not value.any()
    assert not notices()


def test_index_and_inspect_tell_the_same(lacking, loaders, notices, capsys, tmp_path):
    root, gone = lacking
    path = str(root / "bridge" / "0.1.0")
    mixture = hr.Mixture.load("oxe29", [f"root={root}", "only=bridge", "defaults.split=train"])
    loaders(mixture, frames="single")
    (told,) = notices()
    line = told.removeprefix("bridge: ")
    missing = []
    for command in ("index", "inspect"):
        assert main([command, path]) == 0
        assert line in capsys.readouterr().out
        assert main([command, path, "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        missing.append((said["datasets"][0] if command == "index" else said)["missing_roles"])
    assert missing[0] == missing[1]
    (role,) = missing[0]
    assert (role["role"], role["field"]) == (gone["bridge"], known_datasets()["bridge"].state)
    assert main(["inspect", str(root)]) == 0
    assert capsys.readouterr().out.count("left empty: ") == 29


def test_a_camera_that_the_registry_names_and_the_files_lack_fails_at_open(tmp_path, capsys):
    known = known_datasets()["bridge"]
    other = dataclasses.replace(known, camera="observation/image_1")
    made = oxe29.datasets()["bridge"]
    steps = made.features["steps"].feature.features
    fields = {**steps["observation"].features}
    fields["image_1"] = fields.pop("image")
    changed = f.FeaturesDict({**steps, "observation": f.FeaturesDict(fields)})
    made = dataclasses.replace(
        made, known=other, features=f.FeaturesDict({"steps": f.Steps(changed)})
    )
    write_dataset(tmp_path / known.folder, made.features, {"train": [[made.episode(5, 0, 4)]]})
    mixture = hr.Mixture((hr.Source("bridge"),), tmp_path)
    with pytest.raises(UnknownFieldError) as raised:
        hr.Loader(mixture)
    assert raised.value.dataset == "bridge"
    assert "observation/image_1" in raised.value.remedy
    assert main(["inspect", str(tmp_path)]) == 0
    assert "camera 'observation/image'" in capsys.readouterr().out


def test_names_of_a_mixture_that_the_files_lack_are_told_in_one_line_a_source(
    data, loaders, notices
):
    mixture = make_mixture(
        data, ["bridge", "droid"], language="words", state="language_instruction"
    )
    loader = loaders(mixture, frames="single")
    bridge, droid = notices()
    assert "language 'words'" in bridge
    assert "state 'language_instruction'" in bridge
    assert "observation/state" in bridge
    assert "language 'words'" in droid
    batch = next(loader)
    assert not batch.state.any()
    assert batch.language == [""] * 4
    assert batch.action.any()
    with pytest.raises(UnknownFieldError, match="nose.*observation/"):
        hr.Loader(make_mixture(data, ["bridge"], camera="nose"))


# -- fields come whole -----------------------------------------------------------------------------


def test_every_field_comes_whole_and_is_cut_only_where_the_mixture_says_so(data, loaders):
    loader = loaders(make_mixture(data))
    for source in feed_of(loader).sources:
        for role in (source.action, source.state):
            assert role is None or role.dim == role.field.width
    batch = next(loader)
    assert batch.state.shape == (4, 24)
    assert batch.action.shape == (4, 30)
    state = loader.state_dict()
    cut = loaders(make_mixture(data, state_dim=2, action_dim=3))
    cut.load_state_dict(state)
    fewer, batch = next(cut), next(loader)
    assert fewer.state.shape == (4, 2)
    assert fewer.action.shape == (4, 3)
    np.testing.assert_array_equal(fewer.state, batch.state[:, :2])
    np.testing.assert_array_equal(fewer.action, batch.action[:, :3])


# -- windows ---------------------------------------------------------------------------------------


def test_a_single_frame_is_drawn_from_every_step_with_its_chunk_of_actions(data, loaders, notices):
    loader = loaders(
        make_mixture(data, ["droid"], offset=None), batch_size=1, frames="single", action_chunk=4
    )
    assert not notices()
    (source,) = feed_of(loader).sources
    episodes = source.catalog.episodes("train[:3]")
    steps = int(source.steps(episodes).sum())
    seen = set()
    for _ in range(steps):
        batch = next(loader)
        assert batch.frames.shape == (1, 1, 32, 32, 3)
        assert batch.offset.tolist() == [0]
        t, number = int(batch.frame_idx[0]), int(batch.episode_id[0])
        seen.add((number, t))
        episode = source.catalog.first_rows[number >> 32] + (number & 0xFFFFFFFF)
        left = min(4, int(source.catalog.steps[episode]) - t)
        assert batch.action_is_pad[0].tolist() == [n >= left for n in range(4)]
        np.testing.assert_allclose(
            batch.action[0, :left], source.catalog.read(episode, "action", t, t + left), rtol=1e-6
        )
    assert len(seen) == steps
    with pytest.raises(UsageError, match="single"):
        hr.LoaderOptions(frames="single", action="sum")


def test_steps_and_episodes_that_an_offset_leaves_out_are_told_with_their_share(
    data, loaders, notices
):
    steps = {name: feed_of(loaders(make_mixture(data, [name]))).sources[0] for name in NAMES}
    notices()
    lengths = np.concatenate(
        [source.steps(source.episodes("train[:3]")) for source in steps.values()]
    )
    loaders(make_mixture(data))
    (line,) = notices()
    assert line.startswith(f"offset 2: {np.minimum(lengths, 2).sum() / lengths.sum():.1%}")
    assert "too short" not in line
    shortest = min(
        int(source.steps(source.episodes("train[:3]")).min()) for source in steps.values()
    )
    longest = [n for n, s in steps.items() if s.steps(s.episodes("train[:3]")).max() > shortest]
    loaders(make_mixture(data, longest, offset=shortest))
    (line,) = notices()
    assert "too short" in line


def test_sources_left_out_for_their_weight_are_named(data, loaders, notices):
    mixture = hr.Mixture(
        (*make_mixture(data, ["bridge"]).sources, hr.Source("kuka", weight=0)), data
    )
    loaders(mixture, frames="single")
    (line,) = notices()
    assert line.endswith(": kuka")


def test_only_the_first_rank_tells(data, loaders, notices):
    loaders(make_mixture(data), rank=1, world_size=2)
    assert not notices()


# -- validation ------------------------------------------------------------------------------------


def test_a_source_without_a_validation_split_is_left_out_of_validation_with_a_warning(
    data, loaders, notices
):
    sources = make_mixture(data, ["bridge", "kuka", "droid"]).sources
    mixture = hr.Mixture(
        (sources[0], dataclasses.replace(sources[1], val_split=None), sources[2]), data
    )
    loader = loaders(mixture, batch_size=3)
    notices()
    assert loader.validation_length() > 0
    seen = {batch.names[n] for batch in loader.validation() for n in batch.dataset}
    assert seen == {"bridge", "droid"}
    (line,) = notices()
    assert line.endswith(": kuka")
    assert {loader.names[n] for _ in range(4) for n in next(loader).dataset} >= {"kuka"}
