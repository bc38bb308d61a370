"""The whole sampler: passes, ranks, replacements, and the order that must not change."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import UsageError
from headrace.sampling.blocks import BLOCK
from headrace.sampling.items import SourceItems
from headrace.sampling.ranks import rank_numbers
from headrace.sampling.sampler import Sampler

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


@pytest.mark.parametrize(("batch_size", "world"), [(7, 1), (64, 2), (5, 8), (1, 3)])
def test_any_split_into_batches_and_ranks_gives_the_same_sequence(batch_size, world):
    whole = rows(made_up().draw(np.arange(2000) + BLOCK - 1000))
    ranks = [made_up() for _ in range(world)]
    seen = []
    for batch in range(2000 // (batch_size * world)):
        for rank in range(world):
            numbers = rank_numbers(BLOCK - 1000, batch, batch_size, rank, world)
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
    with pytest.raises(UsageError, match="no sample in 2 episodes.*dataset b") as caught:
        Sampler([1, 1], [SourceItems([3]), SourceItems([0, 0])], 0, ["a", "b"])
    assert "smaller offset" in str(caught.value)


def test_a_source_of_weight_0_may_be_empty():
    sampler = Sampler([1, 0], [SourceItems([3]), SourceItems([0])], 0, ["a", "b"])
    assert set(sampler.draw(np.arange(100)).source.tolist()) == {0}


def test_an_attempt_is_counted_from_1():
    with pytest.raises(UsageError, match="attempt is 0"):
        made_up().replacement(3, 0)


def test_lists_of_other_lengths_are_named():
    with pytest.raises(UsageError, match="2 weights, 1 sources and 1 names"):
        Sampler([1, 2], [SourceItems([1])], 0, ["a"])


def test_nothing_asked_is_nothing_drawn():
    assert len(made_up().draw([])) == 0
