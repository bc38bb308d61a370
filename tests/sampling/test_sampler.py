"""Mixture, sequences, weights and state, and the order that must not change."""

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import UsageError
from headrace.sampling.items import SourceItems
from headrace.sampling.ranks import rank_numbers
from headrace.sampling.sampler import (
    BLOCK,
    BlockOrder,
    Sampler,
    SamplerState,
    Shares,
    ValidationOrder,
    block_layout,
    differences,
    digest,
    resolve_weights,
)

GOLDEN = Path(__file__).parent / "golden_draws.json"
COLUMNS = ("source", "ordinal", "turn", "episode", "start")


def made_up(seed=0):
    """Five sources: large, small, with empty episodes, N per episode, and one single pair."""
    rng = [(7 * i + i * i) % 83 for i in range(300)]
    sources = [
        SourceItems(rng),
        SourceItems([5, 3, 8]),
        SourceItems([0, 12, 0, 0, 40, 0]),
        SourceItems([60, 0, 200], samples_per_episode=2),
        SourceItems([1]),
    ]
    weights = [0.5, 0.1, 0.2, 0.15, 0.05]
    return Sampler(weights, sources, seed, ["large", "small", "holes", "few", "one"])


def rows(draws):
    return list(zip(*(getattr(draws, name).tolist() for name in COLUMNS), strict=True))


def test_the_order_is_that_of_the_golden_file():
    golden = json.loads(GOLDEN.read_text())
    found = rows(made_up(golden["seed"]).draw(golden["number"]))
    assert found == [tuple(row) for row in zip(*(golden[name] for name in COLUMNS), strict=True)], (
        "the same seed now gives other samples. That breaks every run that resumes and every "
        "comparison with an older run: it needs a new major version, a new state VERSION and a "
        "line in CHANGELOG.md before this file may be renewed."
    )


def test_every_source_goes_through_its_pairs_pass_by_pass():
    sampler = made_up(seed=4)
    draws = sampler.draw(np.arange(2 * BLOCK))
    for d, length in ((0, None), (1, 16), (2, 52), (4, 1)):
        here = draws.source == d
        pairs = list(zip(draws.episode[here].tolist(), draws.start[here].tolist(), strict=True))
        length = length or len(set(pairs))
        whole = len(pairs) // length
        assert whole >= 2
        everything = set(pairs[:length])
        for turn in range(whole):
            one = pairs[turn * length : (turn + 1) * length]
            assert len(set(one)) == length, "a repeat within a pass"
            assert set(one) == everything
        assert np.array_equal(draws.turn[here], np.arange(here.sum()) // length)


def test_a_single_source_read_for_one_pass_gives_every_pair_once():
    counts = [9, 0, 4, 30]
    draws = Sampler([1.0], [SourceItems(counts)], 5, ["alone"]).draw(np.arange(43))
    pairs = Counter(zip(draws.episode.tolist(), draws.start.tolist(), strict=True))
    assert pairs == Counter((e, t) for e, count in enumerate(counts) for t in range(count))


@pytest.mark.parametrize(("batch_size", "world_size"), [(7, 1), (64, 2), (5, 8), (1, 3)])
def test_any_split_into_batches_and_ranks_gives_the_same_sequence(batch_size, world_size):
    whole = rows(made_up().draw(np.arange(2000) + BLOCK - 1000))
    ranks = [made_up() for _ in range(world_size)]
    seen = []
    for batch in range(2000 // (batch_size * world_size)):
        for rank in range(world_size):
            numbers = rank_numbers(BLOCK - 1000, batch, batch_size, rank, world_size)
            seen += rows(ranks[rank].draw(numbers))
    assert seen == whole[: len(seen)]
    assert len(seen) > 1900


def test_another_seed_is_another_sequence_and_the_same_seed_the_same():
    numbers = np.arange(1000)
    assert rows(made_up(1).draw(numbers)) == rows(made_up(1).draw(numbers))
    assert rows(made_up(1).draw(numbers)) != rows(made_up(2).draw(numbers))


def test_a_new_neighbour_does_not_change_the_order_within_a_source():
    def episodes(sampler, of, count=500):
        draws = sampler.draw(np.arange(BLOCK))
        return draws.start[draws.source == of][:count].tolist()

    items = SourceItems([1000, 300])
    alone = Sampler([1], [items], 3, ["a"])
    beside = Sampler([0.7, 0.3], [SourceItems([50]), items], 3, ["b", "a"])
    assert episodes(alone, 0) == episodes(beside, 1)


def test_a_replacement_is_of_the_same_source_and_always_the_same():
    sampler = made_up()
    for number in (0, 1, 77, 10**12):
        regular = sampler.draw([number])
        for attempt in (1, 2, 3):
            other = sampler.replacement(number, attempt)
            assert rows(other) == rows(made_up().replacement(number, attempt))
            assert other.number.tolist() == [number]
            assert other.source[0] == regular.source[0]
            assert other.ordinal[0] == regular.ordinal[0]


def test_replacements_go_through_the_whole_source():
    sampler = made_up()
    draws = sampler.draw(np.arange(100))
    number = int(draws.number[draws.source == 1][0])
    others = [sampler.replacement(number, attempt) for attempt in range(1, 17)]
    assert len({(draw.episode[0], draw.start[0]) for draw in others}) == 16


def test_replacements_of_neighbours_differ_from_what_comes_next():
    sampler = Sampler([1], [SourceItems([10_000])], 0, ["a"])
    regular = sampler.draw(np.arange(200)).start
    others = [int(sampler.replacement(number, 1).start[0]) for number in range(100)]
    assert len(set(others)) == 100
    assert len(set(others) & set(regular.tolist())) < 10


def test_a_source_without_a_sample_is_named():
    with pytest.raises(UsageError, match="2 episodes") as caught:
        Sampler([1, 1], [SourceItems([3]), SourceItems([0, 0])], 0, ["a", "b"])
    assert caught.value.dataset == "b"
    assert "offset" in caught.value.remedy


def test_a_source_of_weight_0_may_be_empty():
    sampler = Sampler([1, 0], [SourceItems([3]), SourceItems([0])], 0, ["a", "b"])
    assert set(sampler.draw(np.arange(100)).source.tolist()) == {0}


def test_attempts_are_counted_from_1():
    with pytest.raises(UsageError, match="attempt is 0"):
        made_up().replacement(3, 0)


def test_lists_of_unequal_length_are_named():
    with pytest.raises(UsageError, match="2 weights, 1 sources.* 1 names"):
        Sampler([1, 2], [SourceItems([1])], 0, ["a"])


def test_an_empty_request_gives_no_draws():
    assert len(made_up().draw([])) == 0


POSITIVE_WEIGHTS = st.lists(
    st.floats(0, 1e6, allow_subnormal=False) | st.sampled_from([0.0, 0.03, 1.0]), min_size=1
).filter(lambda weights: any(weights))


@settings(deadline=None, max_examples=100)
@given(weights=POSITIVE_WEIGHTS, block=st.sampled_from([64, 1000, BLOCK]))
def test_places_sum_to_the_block_and_are_within_one_of_the_ideal(weights, block):
    if sum(weight > 0 for weight in weights) > block:
        return
    places = Shares.from_weights(weights, block).places
    ideal = np.array(weights) / np.sum(weights) * block
    assert places.sum() == block
    assert ((places > 0) == (np.array(weights) > 0)).all()
    raised = ((ideal < 1) & (places == 1)).sum()
    assert (places - ideal < 1 + 1e-6).all()
    assert (ideal - places < 1 + 1e-6 + raised * ideal / block * 2).all()


def test_equal_weights_get_equal_places_whatever_their_scale():
    places = Shares.from_weights([0.03] * 29).places
    assert set(places.tolist()) == {2259, 2260}
    assert np.array_equal(places, Shares.from_weights([1] * 29).places)


def test_the_smallest_weight_still_gets_a_place():
    assert Shares.from_weights([1.0, 1e-300, 0.0]).places.tolist() == [BLOCK - 1, 1, 0]


def test_shares_are_exact_to_the_draw_in_every_block():
    shares = Shares.from_weights([0.5, 0.3, 0.2, 1e-9])
    order = BlockOrder(shares, seed=3)
    for block in (0, 1, 17, 10**9):
        source, _ = order.assign(block * BLOCK + np.arange(BLOCK))
        assert np.array_equal(np.bincount(source, minlength=4), shares.places)


def test_the_running_number_counts_the_earlier_draws_of_the_source():
    source, ordinal = BlockOrder(Shares.from_weights([5, 2, 1]), seed=1).assign(
        np.arange(3 * BLOCK)
    )
    for d in range(3):
        assert np.array_equal(ordinal[source == d], np.arange((source == d).sum()))


@settings(deadline=None, max_examples=20)
@given(numbers=st.lists(st.integers(0, 4 * BLOCK), max_size=40))
def test_draws_may_be_requested_in_any_order_and_number(numbers):
    order = BlockOrder(Shares.from_weights([5, 2, 1]), seed=1)
    source, ordinal = order.assign(np.array(numbers, np.int64))
    alone = [order.assign(np.array([number])) for number in numbers]
    assert source.tolist() == [int(s[0]) for s, _ in alone]
    assert ordinal.tolist() == [int(o[0]) for _, o in alone]


def test_blocks_and_seeds_differ():
    shares = Shares.from_weights([1, 1])
    first = block_layout(shares, 0, 0)[0]
    for seed, block in ((0, 1), (1, 0)):
        equal = (first == block_layout(shares, seed, block)[0]).mean()
        assert 0.49 < equal < 0.51


def test_sources_of_neighbouring_draws_are_independent():
    weights = np.array([0.4, 0.3, 0.2, 0.1])
    source, _ = BlockOrder(Shares.from_weights(weights), seed=11).assign(np.arange(4 * BLOCK))
    for lag in (1, 2, 64):
        counts = np.zeros((4, 4))
        np.add.at(counts, (source[:-lag], source[lag:]), 1)
        expected = np.outer(weights, weights) * counts.sum()
        chi = ((counts - expected) ** 2 / expected).sum()
        assert chi < 40  # 9 degrees of freedom: p < 1e-5


def test_shares_are_close_in_every_part_of_a_block():
    source, _ = BlockOrder(Shares.from_weights([0.25, 0.75]), seed=2).assign(np.arange(BLOCK))
    shares = (source.reshape(-1, 1024) == 0).mean(axis=1)
    assert abs(shares - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / 1024)


@pytest.mark.parametrize(
    ("weights", "value"),
    [
        ([], "among 0"),
        ([0, 0], "among 2"),
        ([1, -0.5], r"weights\[1\] is -0.5"),
        ([float("nan")], r"weights\[0\] is nan"),
        ([1, 1, float("inf")], r"weights\[2\] is inf"),
        ([1] * (BLOCK + 1), "65537 sources.* 65536"),
    ],
)
def test_invalid_weights_are_named(weights, value):
    with pytest.raises(UsageError, match=value):
        Shares.from_weights(weights)


def test_a_negative_draw_number_is_named():
    with pytest.raises(UsageError, match="-5"):
        BlockOrder(Shares.from_weights([1]), seed=0).assign(np.array([3, -5]))


def test_a_source_that_is_alone_needs_no_block_layout():
    shares, numbers = Shares.from_weights([0, 1, 0], 64), np.array([0, 63, 64, 700, 5])
    source, ordinal = BlockOrder(shares, 3).assign(numbers)
    for number, where, count in zip(numbers, source, ordinal, strict=True):
        owner, rank = block_layout(shares, 3, int(number) // 64)
        assert (where, count) == (owner[number % 64], number // 64 * 64 + rank[number % 64])


WEIGHT = st.floats(-1, 1) | st.sampled_from([None, "proportional"])


@given(rows=st.lists(st.tuples(WEIGHT, st.integers(0, 10**8)), min_size=1, max_size=30))
def test_shares_sum_to_1_and_numbers_keep_theirs_beside_proportional_ones(rows):
    weights, pairs = zip(*rows, strict=True)
    try:
        shares = resolve_weights(weights, pairs)
    except UsageError:
        return
    assert math.isclose(math.fsum(shares), 1)
    assert min(shares) >= 0
    if None in weights or "proportional" in weights:
        for weight, share in zip(weights, shares, strict=True):
            if isinstance(weight, float):
                assert share == max(0, weight)


def test_examples_of_resolved_weights():
    assert resolve_weights([1, 3], [5, 5]) == [0.25, 0.75]
    assert resolve_weights([None, None], [30, 10]) == [0.75, 0.25]
    assert resolve_weights([0.5, None, -2, 0], [1, 8, 8, 8]) == [0.5, 0.5, 0, 0]


@pytest.mark.parametrize(
    ("weights", "pairs", "value"),
    [
        ([0.5, 0.5, None], [1, 1, 1], "sum to 1.*'c'"),
        ([2, "proportional", None], [1, 1, 1], "sum to 2.*'b', 'c'"),
        ([0, -1, 0], [1, 1, 1], "no source"),
        ([0.5, 0.1, None], [1, 1, 0], "no pairs.*'c'"),
        ([0.5, math.nan, 1], [1, 1, 1], "'b' is nan"),
        ([0.5, -math.inf, 1], [1, 1, 1], "'b' is -inf"),
        ([0.5, "half", 1], [1, 1, 1], "'b' is 'half'"),
        ([0.5], [1, 1, 1], "1 weights for 3"),
    ],
)
def test_weights_that_cannot_be_resolved_are_named(weights, pairs, value):
    with pytest.raises(UsageError, match=value):
        resolve_weights(weights, pairs, ["a", "b", "c"])


VALIDATION_COUNTS = st.lists(st.lists(st.integers(0, 9), max_size=12), min_size=1, max_size=8)


def validation_of(counts, n=0):
    names = [f"source {i}" for i in range(len(counts))]
    return ValidationOrder([SourceItems(each, n) for each in counts], names)


@settings(deadline=None, max_examples=80)
@given(counts=VALIDATION_COUNTS)
def test_every_pair_of_every_source_comes_exactly_once(counts):
    order = validation_of(counts)
    draws = order.draw(np.arange(order.length))
    rows = zip(draws.source.tolist(), draws.episode.tolist(), draws.start.tolist(), strict=True)
    assert Counter(rows) == Counter(
        (d, e, t)
        for d, episodes in enumerate(counts)
        for e, starts in enumerate(episodes)
        for t in range(starts)
    )


@settings(deadline=None, max_examples=80)
@given(counts=VALIDATION_COUNTS)
def test_sources_take_turns_until_they_are_finished(counts):
    order = validation_of(counts)
    draws = order.draw(np.arange(order.length))
    for d, episodes in enumerate(counts):
        assert draws.ordinal[draws.source == d].tolist() == list(range(sum(episodes)))
    for n in range(order.length):
        seen = np.bincount(draws.source[: n + 1], minlength=len(counts))
        open_ = [d for d, episodes in enumerate(counts) if seen[d] < sum(episodes)]
        if open_:
            assert seen.max() - seen[open_].min() <= 1


@settings(deadline=None, max_examples=40)
@given(counts=VALIDATION_COUNTS, data=st.data())
def test_validation_draws_may_be_requested_in_any_order(counts, data):
    order = validation_of(counts)
    if not order.length:
        return
    numbers = data.draw(st.lists(st.integers(0, order.length - 1)))
    whole = order.draw(np.arange(order.length))
    some = order.draw(np.array(numbers, np.int64))
    assert some.episode.tolist() == whole.episode[numbers].tolist()
    assert some.start.tolist() == whole.start[numbers].tolist()


def test_a_tiny_source_is_in_the_first_batch_and_the_others_share_the_rest():
    order = validation_of([[100] * 1000, [1], [50] * 500])
    assert set(order.draw(np.arange(3)).source.tolist()) == {0, 1, 2}
    counts = np.bincount(order.draw(np.arange(1001)).source)
    assert counts.tolist() == [500, 1, 500]


def test_the_first_batches_see_many_episodes():
    draws = validation_of([[100] * 1000]).draw(np.arange(64))
    assert len(set(draws.episode.tolist())) > 50


def test_n_per_episode_holds_for_validation_too():
    order = validation_of([[9, 0, 4], [5]], n=2)
    assert order.length == 6


def test_validation_replacements_reach_every_item_of_the_source():
    order = validation_of([[3, 2], [40]])
    draws = [order.replacement(0, attempt) for attempt in range(1, 6)]
    assert {draw.source[0] for draw in draws} == {0}
    assert len({(draw.episode[0], draw.start[0]) for draw in draws}) == 5


@pytest.mark.parametrize("number", [-1, 15])
def test_a_draw_outside_the_pass_is_named(number):
    with pytest.raises(UsageError, match=f"draw {number} .* 15"):
        validation_of([[9, 4], [2]]).draw([number])


def test_validation_needs_a_name_for_every_source():
    with pytest.raises(UsageError, match="1 sources .* 0 names"):
        ValidationOrder([SourceItems([1])], [])


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
    ("now", "change"),
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
def test_another_fingerprint_is_an_error_that_says_what_changed(now, change):
    with pytest.raises(UsageError, match=change) as caught:
        SamplerState(0, 7, FINGERPRINT).check(7, now)
    assert caught.value.remedy


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
    ("change", "value"),
    [
        ({"version": 99}, "version 99"),
        ({"draws": -1}, "draws is -1"),
        ({"draws": "12"}, "draws is '12'"),
        ({"seed": None}, "seed is None"),
    ],
)
def test_an_invalid_state_is_named(change, value):
    values = {**SamplerState(0, 7, FINGERPRINT).to_dict(), **change}
    with pytest.raises(UsageError, match=value):
        SamplerState.from_dict(values)


def test_a_dict_that_is_not_a_state_is_named():
    with pytest.raises(UsageError, match="version, draws, seed, fingerprint.* epoch"):
        SamplerState.from_dict({"epoch": 3})


def test_a_digest_distinguishes_numbers_and_ignores_their_type():
    assert digest([1, 2, 3]) == digest(np.array([1, 2, 3], np.int32))
    assert digest([1, 2, 3]) != digest([1, 3, 2])


def test_a_state_saved_by_an_older_release_is_read():
    """The dict as 0.1 wrote it: changing it takes a new STATE_VERSION."""
    saved = {"version": 1, "draws": 640, "seed": 3, "fingerprint": {"sources": [RT1]}}
    assert SamplerState.from_dict(saved) == SamplerState(640, 3, {"sources": [RT1]})
    assert SamplerState.from_dict(saved).to_dict() == saved
