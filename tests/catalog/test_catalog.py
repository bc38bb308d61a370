"""Reading through a catalog: the values that were written, by the bytes they need."""

import os
import stat

import numpy as np
import pytest

import headrace as hr
from headrace import errors
from headrace.catalog.source import find_roles, missing_line
from headrace.config.registry import known_datasets
from headrace.reading.local import LocalFiles
from headrace.testing import find_object, read_tag


@pytest.fixture(params=list(known_datasets()))
def known(request):
    return known_datasets()[request.param]


def test_the_registry_names_fields_that_its_datasets_have(oxe, known):
    catalog = hr.Catalog.open(oxe / known.folder)
    roles = catalog.roles
    assert roles.known == known
    assert roles.camera.name == known.camera
    assert roles.camera.shape[:2] == known.size
    assert roles.language.name == known.language
    if known.action:
        assert roles.action.name == known.action
    if known.state:
        assert roles.state.name == known.state
    assert catalog.instruction(0).strip()


def test_the_picture_shows_the_episode_and_step_that_were_requested(oxe, known):
    catalog = hr.Catalog.open(oxe / known.folder)
    shown = set()
    for episode in range(len(catalog)):
        tags = [read_tag(catalog.frame(episode, t)) for t in range(int(catalog.steps[episode]))]
        assert [tag.step for tag in tags] == list(range(len(tags)))
        assert len({(tag.dataset, tag.episode) for tag in tags}) == 1
        shown.add(tags[0].episode)
    assert len(shown) == len(catalog)


def test_state_and_action_are_those_of_the_motion_in_the_picture(oxe, known):
    catalog = hr.Catalog.open(oxe / known.folder)
    first, last = (np.array(find_object(catalog.frame(0, t))) for t in (1, 5))
    if known.state:
        state = catalog.read(0, known.state, 1, 2)[0].reshape(-1)[:2]
        assert np.abs(state - first).max() < 0.02
    if known.action:
        moved = catalog.read(0, known.action, 1, 5).reshape(4, -1)[:, :2].sum(axis=0)
        assert np.abs(moved - (last - first)).max() < 0.03


def test_a_frame_costs_its_own_bytes_and_no_more(oxe):
    files = LocalFiles()
    catalog = hr.Catalog.open(oxe / "bridge" / "0.1.0", files=files)
    encoded = catalog.encoded(1, 3)
    assert files.statistics().bytes == len(encoded) == catalog.place(1, 3).length
    assert len(encoded) < catalog.info(1).length / 6


def test_encoded_frames_are_the_bytes_of_the_file(oxe):
    catalog = hr.Catalog.open(oxe / "bridge" / "0.1.0")
    where = catalog.place(2, 4, "image")
    with open(where.path, "rb") as file:
        file.seek(where.offset)
        assert file.read(where.length) == catalog.encoded(2, 4, "image")
    assert catalog.encoded(2, 4).startswith(b"\xff\xd8")


def test_negative_steps_count_from_the_end(oxe):
    catalog = hr.Catalog.open(oxe / "bridge" / "0.1.0")
    steps = int(catalog.steps[0])
    assert catalog.encoded(0, -1) == catalog.encoded(0, steps - 1)
    whole = catalog.read(0, "observation/state")
    np.testing.assert_array_equal(catalog.read(0, "observation/state", -2), whole[-2:])
    assert len(catalog.read(0, "observation/state", 3, 3)) == 0


def test_episodes_are_numbered_split_by_split_and_their_ids_are_stable(oxe):
    catalog = hr.Catalog.open(oxe / "bridge" / "0.1.0")
    numbers = [n for split in catalog.splits for n in catalog.episodes(split).tolist()]
    assert numbers == list(range(len(catalog)))
    ids = [catalog.info(n).id for n in numbers]
    assert len(set(ids)) == len(ids)
    info = catalog.info(int(catalog.episodes("train")[0]))
    assert info.id == "train/00000/0"
    assert (info.split, info.record) == ("train", 0)


def test_an_instruction_in_code_points_is_text(oxe):
    catalog = hr.Catalog.open(oxe / "language_table" / "0.1.0")
    text = catalog.instruction(0)
    assert text
    assert "\0" not in text
    codes = catalog.read(0, "instruction", 0, 1)[0]
    assert codes.dtype == np.int32
    assert [ord(letter) for letter in text] == codes[codes > 0].tolist()


def test_keys_with_slashes_are_read(oxe):
    catalog = hr.Catalog.open(oxe / "bc_z" / "0.1.0")
    assert catalog.read(0, "action/future/xyz_residual", 0, 2).shape == (2, 30)
    assert catalog.read(0, "present/xyz", 0, 2).shape == (2, 3)


def test_depth_is_16_bit_and_doubles_are_doubles(oxe):
    field = hr.Catalog.open(oxe / "uiuc_d3field" / "0.1.0")
    assert field.frame(0, 0, "depth_1").dtype == np.uint16
    assert field.frame(0, 0, "depth_1").shape == (360, 640, 1)
    droid = hr.Catalog.open(oxe / "droid" / "1.0.1")
    assert droid.read(0, "action", 0, 1).dtype == np.float64


# -- roles ---------------------------------------------------------------------------------------


def test_roles_of_an_unknown_dataset_are_found_from_its_schema(real_bridge):
    roles = hr.Catalog.open(real_bridge).roles
    assert roles.known is None
    assert roles.camera.name == "observation/image_0"
    assert roles.action.name == "action"
    assert roles.state.name == "observation/state"
    assert roles.language.name == "language_instruction"


def test_most_registered_roles_would_be_found_without_the_registry(oxe, tmp_path):
    """The guess is good: it names the registry's camera and instruction nearly everywhere."""
    cameras = languages = 0
    for known in known_datasets().values():
        schema = hr.Catalog.open(oxe / known.folder).schema
        roles = find_roles(schema, tmp_path / "elsewhere" / "1.0.0")
        cameras += roles.camera.name == known.camera
        languages += roles.language is not None and roles.language.name == known.language
    assert cameras >= 27
    assert languages >= 28


def test_roles_given_by_hand_win(oxe):
    folder = oxe / "droid" / "1.0.1"
    schema = hr.Catalog.open(folder).schema
    roles = find_roles(schema, folder, camera="wrist_image_left", state="joint_position")
    assert roles.camera.name == "observation/wrist_image_left"
    assert roles.state.name == "observation/joint_position"


def test_a_role_that_the_files_do_not_have_is_missing_and_only_the_camera_is_required(oxe):
    folder = oxe / "droid" / "1.0.1"
    schema = hr.Catalog.open(folder).schema
    roles = find_roles(
        schema, folder, camera="nose", action="language_instruction", state="joints", robot="r"
    )
    assert [(each.role, each.field) for each in roles.missing] == [
        ("camera", "nose"),
        ("action", "language_instruction"),
        ("state", "joints"),
        ("robot", "r"),
    ]
    assert (roles.camera, roles.action, roles.state, roles.robot) == (None,) * 4
    camera, action, state, robot = roles.missing
    assert "observation/wrist_image_left" in camera.candidates
    assert set(action.candidates) == set(state.candidates)
    assert action.candidates[0] == "action"
    assert state.candidates[0] == "observation/cartesian_position"
    assert "episode_metadata/file_path" in robot.candidates
    assert "language_instruction" not in action.candidates
    with pytest.raises(errors.UnknownFieldError, match="'nose'.*wrist_image_left"):
        roles.main_camera()
    line = missing_line(roles.missing)
    assert all(f"{each.role} {each.field!r}" in line for each in roles.missing)
    assert find_roles(schema, folder).missing == ()


# -- where the catalog lies ----------------------------------------------------------------------


def test_the_catalog_lies_beside_the_data_if_it_can(bridge):
    assert hr.Catalog.open(bridge).folder == bridge / ".headrace"


def test_the_catalog_of_read_only_data_lies_in_the_cache(bridge, tmp_path):
    bridge.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        catalog = hr.Catalog.open(bridge)
        assert catalog.folder.is_relative_to(os.environ["HEADRACE_CACHE"])
        assert not (bridge / ".headrace").exists()
        assert hr.Catalog.open(bridge).manifest == catalog.manifest
    finally:
        bridge.chmod(0o755)


def test_the_cache_follows_xdg_where_nothing_else_is_said(bridge, tmp_path, monkeypatch):
    monkeypatch.delenv("HEADRACE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    catalog = hr.Catalog.open(bridge, cache=True)
    assert catalog.folder.is_relative_to(tmp_path / "xdg" / "headrace")


def test_a_catalog_in_the_cache_is_found_again_without_being_told(bridge):
    first = hr.Catalog.open(bridge, cache=True)
    assert hr.Catalog.open(bridge).folder == first.folder


def test_nowhere_to_write_is_an_error_that_says_what_to_set(bridge, tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("HEADRACE_CACHE", str(blocked))
    with pytest.raises(errors.CatalogError, match="HEADRACE_CACHE"):
        hr.Catalog.open(bridge, cache=True)


@pytest.mark.parametrize("options", [{"level": "pixels"}, {"on_damage": "ignore"}])
def test_unknown_options_are_refused(bridge, options):
    with pytest.raises(errors.UsageError, match="pixels|ignore"):
        hr.Catalog.open(bridge, **options)


def test_a_frame_of_a_file_that_changed_after_opening_is_refused(bridge):
    catalog = hr.Catalog.open(bridge, files=LocalFiles())
    where = catalog.place(0, 0)
    os.utime(where.path, ns=(5, 5))
    with pytest.raises(errors.DatasetError, match="changed") as caught:
        catalog.frame(0, 0)
    assert caught.value.episode
    assert caught.value.dataset == "bridge 0.1.0"


def test_the_registry_suggests_the_nearest_name():
    with pytest.raises(errors.UnknownDatasetError, match="language_table"):
        hr.known_dataset("language_tabel")
    assert hr.known_dataset("fractal20220817_data").name == "rt1"
    assert len(hr.known_datasets()) == 29
