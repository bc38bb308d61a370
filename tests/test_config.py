"""Mixtures: YAML, overrides, folders, and errors that name the key."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config import Mixture, Source, packaged_mixtures
from headrace.config.registry import known_datasets
from headrace.errors import HeadraceError, UsageError

YAML = """
root: /data/oxe
defaults: {split: "train[:90%]", val_split: "train[90%:]", offset: 5, samples_per_episode: 2}
sources:
  - {name: bridge, weight: 0.03}
  - {name: rt1, weight: proportional, offset: 3, samples_per_episode: 0, val_split: null}
  - name: mine
    path: here/1.0.0
    camera: image
    action: action
    state: state
    language: language_instruction
    offset_seconds: 0.6
    hz: 5
  - {name: kuka, weight: 0}
"""


@pytest.fixture
def written(tmp_path):
    def write(text):
        file = tmp_path / "mixture.yaml"
        file.write_text(text)
        return file

    return write


def names(mixture):
    return [source.name for source in mixture.sources]


def test_a_yaml_file_becomes_sources_with_the_defaults_filled_in(written, tmp_path):
    mixture = Mixture.load(written(YAML))
    bridge, rt1, mine, kuka = mixture.sources
    assert mixture.root == Path("/data/oxe")
    assert (bridge.weight, bridge.offset, bridge.samples_per_episode) == (0.03, 5, 2)
    assert (bridge.split, bridge.val_split) == ("train[:90%]", "train[90%:]")
    assert (rt1.weight, rt1.offset, rt1.samples_per_episode) == (None, 3, 0)
    assert rt1.val_split is None
    assert (mine.weight, mine.camera, mine.language) == (None, "image", "language_instruction")
    assert (mine.offset, mine.offset_seconds, mine.hz) == (None, 0.6, 5)
    assert mine.path == tmp_path / "here/1.0.0"
    assert kuka.weight == 0


def test_sources_of_weight_0_or_less_take_no_part(written):
    mixture = Mixture.load(written(YAML), ["sources.bridge.weight=-1"])
    assert [source.name for source in mixture.active] == ["rt1", "mine"]
    assert names(mixture) == ["bridge", "rt1", "mine", "kuka"]


def test_folders_come_from_the_registry_or_the_path(written, tmp_path):
    mixture = Mixture.load(written(YAML))
    assert [str(mixture.folder(source)) for source in mixture.active] == [
        "/data/oxe/bridge/0.1.0",
        "/data/oxe/fractal20220817_data/0.1.0",
        str(tmp_path / "here/1.0.0"),
    ]


def test_every_known_dataset_lies_where_the_registry_says():
    for known in known_datasets().values():
        for name in (known.name, known.dir):
            mixture = Mixture((Source(name),), Path("/r"))
            assert mixture.folder(mixture.sources[0]) == Path("/r") / known.folder


def test_a_version_replaces_that_of_the_registry_and_extends_a_path():
    mixture = Mixture(
        (Source("droid", version="1.0.0"), Source("x", path="/x", version="2.0.0")), "/r"
    )
    assert [str(mixture.folder(each)) for each in mixture.sources] == ["/r/droid/1.0.0", "/x/2.0.0"]


def test_a_relative_root_is_relative_to_the_file_and_in_an_override_to_the_current_folder(
    written, tmp_path, monkeypatch
):
    (tmp_path / "current").mkdir()
    monkeypatch.chdir(tmp_path / "current")
    file = written("root: below\nsources: [{name: bridge}]")
    assert Mixture.load(file).root == tmp_path / "below"
    assert Mixture.load("../mixture.yaml").root.resolve() == tmp_path / "below"
    assert Mixture.load(file, ["root=other"]).root == tmp_path / "current/other"


def test_the_packaged_mixture_holds_the_29_known_datasets_with_equal_weights():
    assert packaged_mixtures() == ["oxe29"]
    mixture = Mixture.load("oxe29", ["root=/data"])
    assert names(mixture) == list(known_datasets())
    for source in mixture.sources:
        assert dataclasses.replace(source, name="any", path=None) == Source(
            "any", weight=0.03, split="train[:90%]", val_split="train[90%:]"
        )


def test_a_file_of_the_same_name_goes_before_the_packaged_mixture(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("oxe29").write_text("root: /r\nsources: [{name: bridge}]")
    assert names(Mixture.load("oxe29")) == ["bridge"]


def test_some_sources_of_a_mixture_can_be_chosen_by_name(written):
    file = written(YAML)
    for chosen in (
        Mixture.load(file).only("mine, bridge"),
        Mixture.load(file).only(["bridge", "mine"]),
        Mixture.load(file, ["only=[mine, bridge]"]),
        Mixture.load(file, ["only=mine,bridge"]),
        Mixture.load(written(YAML + "only: [bridge, mine]")),
    ):
        assert names(chosen) == ["bridge", "mine"]
        assert chosen.root == Path("/data/oxe")
        assert [source.weight for source in chosen.sources] == [0.03, None]
    # What is not chosen needs no root.
    assert names(Mixture.load(file, ["root=null", "only=mine"])) == ["mine"]


@pytest.mark.parametrize("only", ["brige", ["bridge", "brige"]])
def test_an_unknown_name_is_answered_with_the_nearest_and_the_list(written, only):
    with pytest.raises(UsageError) as raised:
        Mixture.load(written(YAML)).only(only)
    assert "'brige'" in raised.value.problem
    assert "'bridge'" in raised.value.remedy
    assert "bridge, rt1, mine, kuka" in raised.value.remedy


@pytest.mark.parametrize("only", [[], 3, ["bridge", 3], {"bridge": 1}])
def test_what_names_no_source_is_an_error(written, only):
    with pytest.raises(UsageError):
        Mixture.load(written(YAML)).only(only)


def test_a_mixture_can_be_written_inline(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = " {root: data, sources: [{name: bridge, split: 'train[:9]'}, {name: x, path: y/1.0.0}]}"
    mixture = Mixture.load(text, ["sources.bridge.weight=0.1"])
    assert mixture.root == tmp_path / "data"
    assert mixture.sources[0] == Source("bridge", weight=0.1, split="train[:9]")
    assert mixture.sources[1].path == tmp_path / "y/1.0.0"
    long = "{sources: [" + ", ".join(f"{{name: s{i}, path: /x}}" for i in range(400)) + "]}"
    assert len(Mixture.load(long).sources) == 400


@pytest.mark.parametrize(
    "text", ["{sources: [", "{sorces: []}", "{}", "{sources: [{name: brige}]}"]
)
def test_an_inline_mixture_is_checked_as_a_file_is(text):
    with pytest.raises(UsageError):
        Mixture.load(text)


@pytest.mark.parametrize("sources", [[{"name": "bridge"}], "bridge", {"bridge": 1.0}])
def test_sources_are_objects_of_their_class(sources):
    with pytest.raises(UsageError) as raised:
        Mixture(sources, Path("/data"))
    assert "from_dict" in raised.value.remedy


@pytest.mark.parametrize("mixture", [{"sources": [{"name": "bridge"}]}, ["bridge"], None, 3])
def test_what_is_no_mixture_is_answered_with_the_ways_to_give_one(mixture):
    with pytest.raises(UsageError) as raised:
        Mixture.load(mixture)
    assert "from_dict" in raised.value.remedy


@pytest.mark.parametrize(
    ("override", "get", "value"),
    [
        ("sources.bridge.weight=0.1", lambda m: m.sources[0].weight, 0.1),
        ("sources.bridge.weight=null", lambda m: m.sources[0].weight, None),
        ("sources.bridge.weight=proportional", lambda m: m.sources[0].weight, None),
        ("sources.rt1.split=train[90%:]", lambda m: m.sources[1].split, "train[90%:]"),
        ("sources.rt1.split=train[:10]+test", lambda m: m.sources[1].split, "train[:10]+test"),
        ("sources.mine.path=/else where", lambda m: m.sources[2].path, Path("/else where")),
        ("defaults.offset=7", lambda m: [s.offset for s in m.sources], [7, 3, None, 7]),
        ("defaults.offset_seconds=1", lambda m: m.sources[1].offset, 3),
        ("root=/d=e", lambda m: m.root, Path("/d=e")),
        ("sources=[{name: toto}]", names, ["toto"]),
    ],
)
def test_overrides_change_one_value(written, override, get, value):
    text = YAML if override != "defaults.offset_seconds=1" else YAML.replace("offset: 5, ", "")
    assert get(Mixture.load(written(text), [override])) == value


def test_a_name_with_dots_can_be_overridden(written):
    file = written("sources: [{name: mine.v1.0, path: /x}]")
    assert Mixture.load(file, ["sources.mine.v1.0.offset=9"]).sources[0].offset == 9


def test_the_environment_may_give_the_root(written, monkeypatch):
    file = written("root: ${oc.env:MY_ROBOTS}\nsources: [{name: bridge}]")
    monkeypatch.setenv("MY_ROBOTS", "/robots")
    assert Mixture.load(file).root == Path("/robots")
    monkeypatch.delenv("MY_ROBOTS")
    with pytest.raises(UsageError, match="cannot resolve the mixture.*MY_ROBOTS"):
        Mixture.load(file)


SOURCES = st.builds(
    Source,
    name=st.sampled_from(list(known_datasets())),
    weight=st.none() | st.floats(1e-9, 10),
    path=st.none() | st.just("/x/y"),
    version=st.none() | st.just("1.0.0"),
    camera=st.none() | st.just("image"),
    split=st.sampled_from(["train", "train[:90%]", "all"]),
    val_split=st.none() | st.just("test"),
    offset=st.none() | st.integers(1, 100),
    hz=st.none() | st.floats(0.1, 100),
    samples_per_episode=st.integers(0, 9),
)


@settings(deadline=None, max_examples=50)
@given(
    sources=st.lists(SOURCES, min_size=1, max_size=4, unique_by=lambda s: s.name),
)
def test_objects_survive_a_dict_and_a_yaml_file(tmp_path_factory, sources):
    mixture = Mixture(tuple(sources), Path("/root"))
    assert Mixture.from_dict(mixture.to_dict()) == mixture
    file = tmp_path_factory.mktemp("mixture") / "again.yaml"
    file.write_text(mixture.to_yaml())
    assert Mixture.load(file) == mixture


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("source: []", "unknown key source.*Did you mean 'sources'"),
        ("sources: []", "sources is empty"),
        ("root: /r", "sources is None, not a list"),
        ("", "sources is None, not a list"),
        ("sources: {bridge: 1}", r"sources is \{'bridge': 1\} \(dict\), not a list"),
        ("sources: [bridge]", r"sources\[0\] is 'bridge', not a mapping"),
        ("- bridge", "the mixture is a list"),
        ("just text", "mixture"),
        ("sources: [{weight: 1}]", r"sources\[0\].name is missing"),
        ("sources: [{name: 12, path: x}]", r"sources\[0\].name is 12 \(int\), not text"),
        ("sources: [{name: '', path: x}]", r"sources\[0\].name is '', not text"),
        ("sources: [{name: a, wieght: 1}]", "sources.a.wieght.*Did you mean 'weight'"),
        ("defaults: {ofset: 1}\nsources: []", "unknown key defaults.ofset.*Did you mean 'offset'"),
        ("defaults: {path: x}\nsources: []", "unknown key defaults.path"),
        ("defaults: 3\nsources: []", r"defaults is 3 \(int\), not a mapping"),
        ("defaults: {weight: x}\nsources: []", "defaults.weight is 'x'"),
        (
            "root: /r\nsources: [{name: bridge}, {name: rt1}, {name: bridge}]",
            r"sources\[0\] and sources\[2\] have the same name 'bridge'",
        ),
        ("root: /r\nsources: [{name: brigde}]", "sources.brigde is not in.*mean 'bridge'.*a path"),
        ("sources: [{name: bridge}]", "sources.bridge is known by name, but there is no root"),
        ("root: 5\nsources: [{name: bridge}]", r"root is 5 \(int\), not text"),
        ("root: 'gs://x'\nsources: [{name: bridge}]", "root is the address 'gs://x'"),
        ("sources: [{name: a, path: x, weight: .nan}]", "sources.a.weight is nan"),
        ("sources: [{name: a, path: x, weight: -.inf}]", "sources.a.weight is -inf"),
        ("sources: [{name: a, path: x, weight: true}]", r"sources.a.weight is True \(bool\)"),
        ("sources: [{name: a, path: x, weight: half}]", "sources.a.weight is 'half'"),
        ("sources: [{name: a, path: x, weight: 0}]", "no source has a weight above 0 among a"),
        ("sources: [{name: a, path: x, offset: 0}]", "sources.a.offset is 0"),
        ("sources: [{name: a, path: x, offset: 2.5}]", "sources.a.offset is 2.5"),
        ("sources: [{name: a, path: x, offset: '5'}]", "sources.a.offset is '5'"),
        ("sources: [{name: a, path: x, offset_seconds: 0}]", "sources.a.offset_seconds is 0"),
        ("sources: [{name: a, path: x, hz: -1}]", "sources.a.hz is -1"),
        ("sources: [{name: a, path: x, hz: .inf}]", "sources.a.hz is inf"),
        ("sources: [{name: a, path: x, samples_per_episode: -1}]", "samples_per_episode is -1"),
        (
            "sources: [{name: a, path: x, offset: 5, offset_seconds: 1}]",
            "sources.a has offset 5 and",
        ),
        ("sources: [{name: a, path: x, split: null}]", "sources.a.split is None, not text"),
        ("sources: [{name: a, path: x, version: 1.0}]", "version is 1.0, not text.*quote"),
        ("sources: [{name: a, path: [x]}]", r"sources.a.path is \['x'\] \(list\)"),
        ("sources: [{name: a, name: b}]", "cannot read the mixture.*duplicate key"),
        ("sources: [", "cannot read the mixture"),
        ("root: ${nothing}\nsources: [{name: a, path: x}]", "cannot resolve the mixture.*nothing"),
        ("root: ???\nsources: [{name: a, path: x}]", "cannot resolve the mixture.*root"),
    ],
)
def test_a_mixture_that_cannot_be_names_the_key_and_the_remedy(written, text, words):
    file = written(text)
    with pytest.raises(UsageError, match=words) as caught:
        Mixture.load(file)
    assert str(file) in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("sources.brigde.weight=1", "sources.brigde.weight.*Did you mean 'bridge'"),
        ("sources.bridge.wieght=1", "sources.bridge.wieght.*Did you mean 'weight'"),
        ("sources.bridge=1", "names no source"),
        ("surces.bridge.weight=1", "unknown key surces.*Did you mean 'sources'"),
        ("defaults.ofset=1", "unknown key defaults.ofset"),
        ("root", "override 'root' has no `=`"),
        ("sources.bridge.weight=[", "has no YAML value"),
        ("sources.bridge.weight=nan", "sources.bridge.weight is"),
        ("root=gs://x", "root is the address"),
    ],
)
def test_an_override_that_cannot_be_is_named(written, override, words):
    with pytest.raises(UsageError, match=words):
        Mixture.load(written(YAML), [override])


def test_overrides_in_one_text_are_refused(written):
    with pytest.raises(UsageError, match="overrides is the text 'root=/x'"):
        Mixture.load(written(YAML), "root=/x")


@pytest.mark.parametrize("text", ["sources: 5", "sources: {a: 1}", "defaults: 5", "{}"])
def test_an_override_of_a_broken_mixture_is_still_a_clear_error(written, text):
    for override in ("sources.a.weight=1", "defaults.offset=3"):
        with pytest.raises(UsageError):
            Mixture.load(written(text), [override])


def test_a_file_that_is_not_there_is_named_with_the_packaged_ones(tmp_path):
    with pytest.raises(UsageError, match="no such mixture file.*packaged 'oxe29'") as caught:
        Mixture.load(tmp_path / "oxe29.yaml")
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(UsageError, match="no such mixture file"):
        Mixture.load(tmp_path)


def test_a_file_that_is_not_text_is_a_clear_error(tmp_path):
    file = tmp_path / "binary.yaml"
    file.write_bytes(bytes(range(256)))
    with pytest.raises(UsageError, match="cannot read the mixture"):
        Mixture.load(file)


@settings(deadline=None, max_examples=100)
@given(
    values=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["root", "defaults", "sources", "name", "path", "weight", "offset"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_no_plain_value_raises_anything_else(values):
    try:
        Mixture.from_dict(values)
    except HeadraceError as error:
        assert error.remedy


def test_python_objects_are_checked_as_well():
    with pytest.raises(UsageError, match="sources.a.weight is nan"):
        Source("a", weight=float("nan"))
    with pytest.raises(UsageError, match="name is missing"):
        Source(None)
    with pytest.raises(UsageError, match="sources is empty"):
        Mixture(())
