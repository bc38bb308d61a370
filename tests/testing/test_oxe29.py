"""The 29 datasets: true to the registry, to the motion and to the size of real frames."""

import cv2
import numpy as np
import pytest

from headrace.config.registry import known_datasets
from headrace.testing import Tag, episode_values, features, find_object, oxe29, read_tag
from tests.testing.read_back import decoded

NAMES = list(oxe29.datasets())
SEED, EPISODE, STEPS = 5, 1, 7


@pytest.fixture(scope="module", params=NAMES)
def case(request):
    dataset = oxe29.dataset(request.param)
    return dataset, dataset.episode(SEED, EPISODE, STEPS)


def lookup(tree, key):
    """A value by its flattened key; names may contain slashes."""
    if key in tree:
        return tree[key]
    for name, inner in tree.items():
        if key.startswith(f"{name}/"):
            return lookup(inner, key[len(name) + 1 :])
    raise KeyError(key)


def schema(dataset):
    def nested(feature):
        if isinstance(feature, features.FeaturesDict):
            return {name: nested(inner) for name, inner in feature.features.items()}
        return feature

    return nested(dataset.features["steps"].feature)


def test_every_dataset_of_the_registry_is_there_in_its_order():
    assert list(known_datasets()) == NAMES
    assert [made.number for made in oxe29.datasets().values()] == list(range(29))


def test_the_registrys_fields_exist_in_the_registrys_shape(case):
    dataset, values = case
    known = dataset.known
    camera = lookup(schema(dataset), known.camera)
    assert camera.shape == (*known.size, 3)
    assert camera.encoding_format == known.encoding
    for key in (known.action, known.state):
        if key:
            numbers = np.asarray(lookup(values["steps"], key))
            assert numbers.reshape(len(numbers), -1).shape[1] >= 2
    language = lookup(values["steps"], known.language)
    if known.language_codes:
        text = "".join(map(chr, language[0][language[0] > 0]))
        assert language.shape[1] == 512
    else:
        text = language[0]
    assert len(text.split()) > 2 or not text.isascii()
    if known.robot:
        assert lookup(values, known.robot)


def test_every_picture_says_where_it_is_from_and_shows_the_object(case):
    dataset, values = case
    state = dataset.known.state
    places = None if state is None else np.asarray(lookup(values["steps"], state))
    for number, (key, feature) in enumerate(dataset.cameras.items()):
        for t, data in enumerate(lookup(values["steps"], key)):
            picture = decoded(data, feature)
            assert picture.shape == feature.shape
            assert read_tag(picture) == Tag(dataset.number, EPISODE, t, number), key
            if feature.dtype != "uint8":
                continue
            found = find_object(picture)
            if places is not None:
                assert found == pytest.approx(places[t].reshape(-1)[:2], abs=0.015), (key, t)


def test_the_sum_of_actions_is_the_displacement_in_the_pictures(case):
    dataset, values = case
    if not dataset.known.action:
        assert all(isinstance(action, str) for action in values["steps"]["action"])
        return
    actions = np.asarray(lookup(values["steps"], dataset.known.action))
    feature = dataset.cameras[dataset.known.camera]
    pictures = lookup(values["steps"], dataset.known.camera)
    seen = np.array([find_object(decoded(data, feature)) for data in pictures])
    steps = len(actions)
    for start in range(steps):
        for end in range(start, steps):
            moved = actions[start:end, :2].sum(axis=0)
            assert moved == pytest.approx(seen[end] - seen[start], abs=0.015)
    assert not actions[-1].reshape(-1)[:2].any()
    assert np.abs(actions[:, :2]).max() > 0.01


def test_bc_z_predicts_ten_waypoints():
    steps = episode_values("bc_z", 0, 0)["steps"]
    xyz = steps["observation"]["present/xyz"]
    ahead = steps["action"]["future/xyz_residual"].reshape(len(xyz), 10, 3)
    for j in range(10):
        np.testing.assert_array_equal(ahead[: -j - 1, j], xyz[j + 1 :] - xyz[: -j - 1])


def test_language_table_speaks_other_scripts_too():
    texts = set()
    for episode in range(12):
        codes = episode_values("language_table", 0, episode, 1)["steps"]["observation"]
        row = codes["instruction"][0]
        texts.add("".join(map(chr, row[row > 0])))
    assert len(texts) > 6
    assert any(text.isascii() for text in texts)
    assert any(not text.isascii() for text in texts)


def test_flags_mark_the_first_and_the_last_step(case):
    _, values = case
    steps = values["steps"]
    count = len(steps["is_first"])
    assert steps["is_first"].tolist() == [True] + [False] * (count - 1)
    assert steps["is_last"].tolist() == [False] * (count - 1) + [True]
    assert steps["reward"][-1] == 1


def test_lengths_vary_by_forty_percent_around_the_mean():
    for dataset in oxe29.datasets().values():
        lengths = [dataset.steps(0, episode) for episode in range(60)]
        assert 0.6 * dataset.length - 1 <= min(lengths) < 0.8 * dataset.length
        assert 1.2 * dataset.length < max(lengths) <= 1.4 * dataset.length + 1
        assert max(lengths) > dataset.known.offset  # there are pairs


def bytes_per_pixel(dataset, values, key):
    height, width = dataset.cameras[key].shape[:2]
    return np.mean([len(data) for data in lookup(values["steps"], key)]) / (height * width)


@pytest.mark.parametrize(
    ("name", "kilobytes"),
    [("fmb", 15), ("stanford_robocook", 15), ("language_table", 38), ("tidybot", 38),
     ("bridge", 48), ("roboturk", 48), ("toto", 48), ("berkeley_autolab_ur5", 48)],
)  # fmt: skip
def test_a_jpeg_frame_has_about_as_many_bytes_as_a_real_one(name, kilobytes):
    dataset = oxe29.dataset(name)
    sizes = []
    for episode in range(3):
        values = dataset.episode(0, episode, 3)
        sizes += [len(data) for data in lookup(values["steps"], dataset.known.camera)]
    assert np.mean(sizes) == pytest.approx(1000 * kilobytes, rel=0.25)


def test_a_png_frame_has_one_to_two_bytes_a_pixel(case):
    dataset, values = case
    for key, feature in dataset.cameras.items():
        if feature.dtype == "uint8":
            least, most = (1.0, 2.1) if feature.encoding_format == "png" else (0.12, 0.65)
            assert least < bytes_per_pixel(dataset, values, key) < most, key


def test_images_without_a_stated_encoding_are_jpeg(case):
    dataset, values = case
    magic = {None: b"\xff\xd8", "jpeg": b"\xff\xd8", "png": b"\x89PNG"}
    for key, feature in dataset.cameras.items():
        encoding = "png" if feature.dtype == "float32" else feature.encoding_format
        for data in lookup(values["steps"], key):
            assert data.startswith(magic[encoding])


def test_float_depth_is_a_bit_cast_of_metres():
    data = episode_values("berkeley_autolab_ur5", 0, 0, 1)["steps"]["observation"]
    raw = np.frombuffer(data["image_with_depth"][0], np.uint8)
    pixels = cv2.cvtColor(cv2.imdecode(raw, cv2.IMREAD_UNCHANGED), cv2.COLOR_BGRA2RGBA)
    metres = pixels.view(np.float32)
    assert metres.shape == (480, 640, 1)
    assert 0.2 < metres.min() < metres.max() < 2.5


def test_every_field_of_an_episode_depends_on_the_episode_and_the_seed():
    first = episode_values("rt1", 0, 0, 5)["steps"]["observation"]
    for other in (episode_values("rt1", 1, 0, 5), episode_values("rt1", 0, 1, 5)):
        seen = other["steps"]["observation"]
        for name in ("image", "base_pose_tool_reached", "orientation_box"):
            assert not np.array_equal(first[name], seen[name]), name
    again = episode_values("fractal20220817_data", 0, 0, 5)["steps"]["observation"]
    assert again["image"] == first["image"]
