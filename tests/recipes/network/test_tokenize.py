"""Tokens: those of the plain twin, for any rows; and the twin against the description."""

import random
import struct
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.network_plain import (
    Row,
    reference_fields,
    reference_measurements,
    reference_tokens,
)
from headrace.errors import UsageError
from headrace.recipes.network import (
    FIELDS,
    LENGTH,
    PREPARED,
    prepare,
    shift_targets,
    tokenize,
    tokenize_windows,
)
from headrace.recipes.network import vocabulary as v
from headrace.recipes.network.tokenize import CASES, LONGEST, SIZES
from headrace.sampling.bijection import hash_ints, to_range
from tests.recipes.network.made_rows import NOW, prepared, rows, table


def fields(*shape):
    return {name: np.full((*shape, LENGTH), -7, np.int32) for name in FIELDS}


def usual(count, seed=0, six=0.3):
    """Rows like those of a file."""
    rng = random.Random(seed)
    made, time = [], NOW
    for _ in range(count):
        time += int(rng.expovariate(0.05 if rng.random() < 0.9 else 0.001) * 1e9)
        version = 6 if rng.random() < six else 4
        ends = [
            ":".join(f"{rng.getrandbits(16):x}" for _ in range(8))
            if version == 6
            else ".".join(str(rng.getrandbits(8)) for _ in range(4))
            for _ in range(2)
        ]
        made.append(
            Row(
                time=time,
                src=None if rng.random() < 0.03 else ends[0],
                dst=None if rng.random() < 0.03 else ends[1],
                version=version,
                rtt=-1.0 if rng.random() < 0.05 else rng.lognormvariate(3, 1.5),
            )
        )
    return made


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_rows_give_the_tokens_of_the_plain_twin(data):
    count = data.draw(st.integers(1, 3))
    each = data.draw(st.integers(1, 12))
    made = data.draw(st.lists(rows(), min_size=count * each, max_size=count * each))
    seed = data.draw(st.integers(0, 2**64 - 1))
    epoch = data.draw(st.integers(0, 2**32))
    numbers = data.draw(st.lists(st.integers(0, 2**40), min_size=count, max_size=count))
    out = fields(count)
    tokenize_windows(prepared(made, count), np.array(numbers), epoch, seed, out)
    for i, number in enumerate(numbers):
        window = made[i * each : (i + 1) * each]
        expected = reference_fields(window, number, epoch, seed)
        assert {name: values[i].tolist() for name, values in out.items()} == expected


@pytest.mark.parametrize("six", [0.0, 0.3, 1.0])
def test_usual_windows_give_the_tokens_of_the_plain_twin_one_by_one_and_together(six):
    count = 60
    made = usual(64 * count, six=six)
    columns = prepare(table(made))
    out, one = fields(count), fields()
    tokenize_windows(prepared(made, count), np.arange(count), np.arange(count) % 3, 5, out)
    for i in range(count):
        here = slice(64 * i, 64 * (i + 1))
        expected = reference_fields(made[here], i, i % 3, 5)
        tokenize({name: values[here] for name, values in columns.items()}, i, i % 3, 5, one)
        for name in FIELDS:
            assert out[name][i].tolist() == expected[name]
            assert one[name].tolist() == expected[name]


def test_a_batch_may_have_some_of_the_fields_and_another_order_of_windows():
    made = usual(64 * 4)
    columns = prepared(made, 4)
    whole, some = fields(4), {"inputs": np.zeros((4, LENGTH), np.int32)}
    tokenize_windows(columns, np.arange(4), 0, 0, whole)
    turned = {name: values[::-1] for name, values in columns.items()}
    tokenize_windows(turned, np.arange(4)[::-1], 0, 0, some)
    assert np.array_equal(some["inputs"][::-1], whole["inputs"])


def test_another_seed_epoch_or_window_is_another_arrangement():
    made = usual(64)
    seen = set()
    for seed, epoch, window in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)):
        order = reference_measurements(made, window, epoch, seed)
        seen.add(tuple((made.index(row), timed) for row, timed in order))
    assert len(seen) == 4


def test_modes_have_their_shares_and_mixed_windows_time_half_of_their_rows():
    words = hash_ints(3, 0, np.arange(20_000)[:, None], np.arange(1)[None])[:, 0]
    mode = to_range(words, 10)
    shares = [(mode < 4).mean(), ((mode >= 4) & (mode < 7)).mean(), (mode >= 7).mean()]
    assert shares == pytest.approx([0.4, 0.3, 0.3], abs=0.015)
    made = usual(64)
    counts = Counter()
    timed_in_mixed = []
    for window in range(400):
        timed = [timed for _, timed in reference_measurements(made, window, 0, 3)]
        counts["all" if all(timed) else "mixed" if any(timed) else "none"] += 1
        if any(timed) and not all(timed):
            timed_in_mixed.append(sum(timed) / 64)
    assert counts["all"] == (mode[:400] < 4).sum()
    assert np.mean(timed_in_mixed) == pytest.approx(0.5, abs=0.02)


def test_a_window_with_times_is_sorted_even_if_its_file_is_not():
    made = usual(64)
    window = next(w for w in range(50) if all(t for _, t in reference_measurements(made, w, 0, 0)))
    shuffled = random.Random(1).sample(made, 64)
    out, other = fields(1), fields(1)
    tokenize_windows(prepared(made), window, 0, 0, out)
    tokenize_windows(prepared(shuffled), window, 0, 0, other)
    assert np.array_equal(out["inputs"], other["inputs"])


@pytest.mark.parametrize(
    ("version", "rtt", "sizes"),
    [(4, 1.0, (14, 23, 16)), (6, 1.0, (38, 47, 40)), (4, -1.0, (12, 21, 14))],
)
def test_measurements_have_the_stated_numbers_of_tokens(version, rtt, sizes):
    row = Row(NOW, None, None, version, rtt)
    later = Row(NOW + 10**9, None, None, version, rtt)
    found = {}
    for window in range(40):
        timed = [timed for _, timed in reference_measurements([row, later], window, 0, 0)]
        found[sum(timed)] = len(reference_tokens([row, later], window, 0, 0))
    untimed, absolute, delta = sizes
    assert found == {0: 2 * untimed, 1: absolute + untimed, 2: absolute + delta}


def test_a_measurement_reads_as_described():
    """By hand: blocks of 10.0.0.1 to 10.0.0.2 after 12.5 ms, absolute and then 300 s later."""
    first = Row(NOW, "10.0.0.1", "10.0.0.2", 4, 12.5)
    second = Row(NOW + 300 * 10**9, "10.0.0.1", "10.0.0.2", 4, -1.0)
    window = next(
        w for w in range(50) if all(t for _, t in reference_measurements([first] * 2, w, 0, 0))
    )
    tokens = reference_tokens([first, second], window, 0, 0)
    size = 1 + 5 + 5 + 3 + 9
    assert tokens[0] == tokens[size] == v.START
    byte = [v.BYTE + b for b in range(256)]
    src = [v.SRC4, byte[10], byte[0], byte[0], byte[1]]
    dst = [v.DST4, byte[10], byte[0], byte[0], byte[2]]
    # 12,500 us halved three times is 1562.5: exponent 3, mantissa 1562 = 6 * 256 + 26.
    rtt = [v.RTT, byte[3 << 3 | 6], byte[26]]
    absolute = [v.ABSOLUTE, *(byte[b] for b in struct.pack(">Q", 1_700_000_000))]
    delta = [v.DELTA4, *(byte[b] for b in (0, 0, 1, 44))]
    assert sorted(tokens[1:size]) == sorted(src + dst + rtt + absolute)
    assert sorted(tokens[size + 1 :]) == sorted(src + dst + [v.FAILED] + delta)
    # md5("10.0.0.1|10.0.0.2|1700000000") begins with the seed of the order.
    blocks = [src, dst, rtt, absolute]
    random.Random(0x0FB62477).shuffle(blocks)
    assert tokens[1:size] == [token for block in blocks for token in block]


def test_there_is_a_template_for_every_shape_and_prepared_rows_stay_small():
    assert len(CASES) == 4 * 576
    assert set(CASES) == set(range(len(SIZES)))
    assert (SIZES.min(), SIZES.max()) == (12, LONGEST)
    bytes_a_row = sum(np.dtype(kind).itemsize * int(np.prod(shape)) for kind, shape in
                      PREPARED.values())  # fmt: skip
    assert bytes_a_row == 44
    columns = prepare(table(usual(10)))
    assert {n: (str(c.dtype), c.shape[1:]) for n, c in columns.items()} == PREPARED


def test_missing_arrays_and_empty_windows_are_refused():
    made = prepared(usual(4))
    with pytest.raises(UsageError, match=r"no array 'inputs' of \[1, 1024\].*Give int32 arrays"):
        tokenize_windows(made, 0, 0, 0, {"inputs": np.zeros((1, 8), np.int32)})
    empty = {name: values[:, :0] for name, values in made.items()}
    with pytest.raises(UsageError, match="no rows"):
        tokenize_windows(empty, 0, 0, 0, fields(1))


def test_shifted_targets_are_the_next_tokens_and_beginnings_count():
    made = usual(64 * 6, six=0.0)
    batch = fields(6)
    tokenize_windows(prepared(made, 6), np.arange(6), 0, 0, batch)
    kept = {name: values.copy() for name, values in batch.items()}
    shifted = shift_targets(batch)
    for tokens, targets, counts, real in zip(
        batch["inputs"],
        shifted["targets"],
        shifted["targets_segmentation"],
        kept["inputs_segmentation"],
        strict=True,
    ):
        size = int(real.sum())
        assert targets[: size - 1].tolist() == tokens[1:size].tolist()
        assert counts.tolist() == [1] * (size - 1) + [0] * (LENGTH - size + 1)
        assert (targets[counts > 0] == v.START).sum() >= 40  # all beginnings but the first
    assert all(np.array_equal(batch[name], kept[name]) for name in FIELDS)  # the batch is unchanged
    for name in ("inputs", "inputs_segmentation", "inputs_position", "targets_position"):
        assert np.array_equal(shifted[name], batch[name])
    assert not any(np.shares_memory(shifted[name], batch[name]) for name in FIELDS)
