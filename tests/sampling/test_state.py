"""The state of a sampler, and what it says when it does not fit."""

import json

import numpy as np
import pytest

from headrace.errors import UsageError
from headrace.sampling.state import SamplerState, differences, digest

BRIDGE = {"name": "bridge", "places": 40_000, "offset": 5, "episodes": 90, "counts": "c0ffee"}
RT1 = {"name": "rt1", "places": 25_536, "offset": 3, "episodes": 70, "counts": "facade"}
FINGERPRINT = {"block": 65_536, "sources": [BRIDGE, RT1]}


def changed(**values):
    return {"block": 65_536, "sources": [{**BRIDGE, **values}, RT1]}


def test_a_state_survives_json():
    state = SamplerState(12_345, 7, {"sources": [{**BRIDGE, "size": (2, np.int64(3))}]})
    again = SamplerState.from_dict(json.loads(json.dumps(state.to_dict())))
    assert (again.draws, again.seed) == (12_345, 7)
    again.check(7, state.fingerprint)
    state.check(7, again.fingerprint)


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (changed(offset=9), "source 'bridge': offset was 5, is 9"),
        (changed(places=10), "source 'bridge': places was 40000, is 10"),
        (changed(episodes=91, counts="other"), "episodes was 90, is 91; source 'bridge': counts"),
        (changed(camera="wrist"), "source 'bridge': camera was not given, is 'wrist'"),
        ({"block": 65_536, "sources": [BRIDGE]}, "source 'rt1' was removed"),
        ({**FINGERPRINT, "sources": [BRIDGE, RT1, {"name": "toto"}]}, "source 'toto' was added"),
        ({**FINGERPRINT, "sources": [RT1, BRIDGE]}, "order of the sources was bridge, rt1, is rt1"),
        ({**FINGERPRINT, "block": 64}, "block was 65536, is 64"),
        ({"sources": [BRIDGE, RT1]}, "block was 65536, is not given"),
    ],
)
def test_another_fingerprint_is_an_error_that_says_what_changed(now, words):
    with pytest.raises(UsageError, match=words) as caught:
        SamplerState(0, 7, FINGERPRINT).check(7, now)
    assert "belongs to another sequence" in str(caught.value)
    assert "Resume with" in str(caught.value)


def test_every_change_is_listed():
    found = list(differences(FINGERPRINT, {"block": 1, "sources": [{**RT1, "offset": 4}]}))
    assert found == [
        "block was 65536, is 1",
        "source 'bridge' was removed",
        "source 'rt1': offset was 3, is 4",
    ]


def test_another_seed_is_an_error():
    with pytest.raises(UsageError, match="seed was 7, is 8"):
        SamplerState(0, 7, FINGERPRINT).check(8, FINGERPRINT)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 99}, "version 99"),
        ({"draws": -1}, "draws is -1"),
        ({"draws": "12"}, "draws is '12'"),
        ({"seed": None}, "seed is None"),
    ],
)
def test_a_state_that_cannot_be_is_named(change, words):
    values = {**SamplerState(0, 7, FINGERPRINT).to_dict(), **change}
    with pytest.raises(UsageError, match=words):
        SamplerState.from_dict(values)


def test_a_dict_that_is_no_state_is_named():
    with pytest.raises(UsageError, match="no loader state: version, draws, seed, fingerprint"):
        SamplerState.from_dict({"epoch": 3})


def test_a_digest_tells_numbers_apart():
    assert digest([1, 2, 3]) == digest(np.array([1, 2, 3], np.int32))
    assert digest([1, 2, 3]) != digest([1, 3, 2])
