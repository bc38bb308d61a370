"""The order of a measurement's blocks, drawn for many rows at once as Python would for each.

The format defines it as `random.Random(seed).shuffle`, where the seed is the head of an MD5. Both
are
computed here for thousands of rows together, and tests hold them to `random` and `hashlib`:

- Python seeds a Mersenne Twister (MT19937, Matsumoto and Nishimura 1998) by mixing the seed into
  all of its 624 words, one after the other: 8 us a seed, of which a shuffle of three or four items
  uses the first few numbers alone. Here it takes 1.0 us a seed, and only the numbers that are
  needed are drawn. A shuffle asks for numbers below n by drawing as many bits as n has, again and
  again until one is below n: half of the draws below 4 are thrown away. A seed that needs more than
  `_DRAWS` numbers (one in 18,000) is shuffled by Python.
- `hashlib` takes 0.6 us a text for its MD5 (RFC 1321) and holds Python's lock all the while; here
it
  takes 0.2 us and holds the lock between the calls of numpy alone.
"""

from __future__ import annotations

import itertools
import math
import random
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Words32: TypeAlias = npt.NDArray[np.uint32]  # sums and products wrap


def _word(value: int) -> np.uint32:
    """A constant that does not widen what it is combined with."""
    return np.uint32(value)


#: All orders of three and of four items, as tuples of the items' first places.
ORDERS3 = tuple(itertools.permutations(range(3)))
ORDERS4 = tuple(itertools.permutations(range(4)))
ORDERS = len(ORDERS4) * len(ORDERS3)  #: a code is 6 * (order of four) + order of three

_STATE = 624
_AHEAD = 397  # a number mixes word i with word i + 397
_DRAWS = 20
_SEEDS = 6144  # seeds: 15 MB of state; larger is hardly faster, smaller pays for numpy's calls


def shuffle_codes(seeds: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """For each 32-bit seed, what `shuffle` makes of [0, 1, 2] and of [0, 1, 2, 3], in one code."""
    seeds = np.ascontiguousarray(seeds, np.uint32)
    codes = np.empty(len(seeds), np.uint8)
    state: Words32 | None = None
    for start in range(0, len(seeds), _SEEDS):
        part = seeds[start : start + _SEEDS]
        if state is None or state.shape[1] != len(part):
            state = np.empty((_STATE, len(part)), np.uint32)
        found = _CODES[_walk(_numbers(part, state))]
        for i in np.flatnonzero(found == ORDERS):
            found[i] = _by_python(int(part[i]))
        codes[start : start + len(part)] = found
    return codes


def _by_python(seed: int) -> int:
    three, four = [0, 1, 2], [0, 1, 2, 3]
    random.Random(seed).shuffle(three)
    random.Random(seed).shuffle(four)
    return _code(tuple(three), tuple(four))


def _code(three: tuple[int, ...], four: tuple[int, ...]) -> int:
    return ORDERS4.index(four) * len(ORDERS3) + ORDERS3.index(three)


def _numbers(seeds: Words32, state: Words32) -> Words32:
    """The first numbers of each seed's generator, [draws, seeds]; `state` is scratch memory."""
    _seed(seeds, list(state))
    here, after = state[:_DRAWS], state[1 : _DRAWS + 1]
    mixed = here & _word(1 << 31) | after & _word((1 << 31) - 1)
    number = state[_AHEAD : _AHEAD + _DRAWS] ^ mixed >> _word(1)
    number ^= (mixed & _word(1)) * _word(0x9908B0DF)
    number ^= number >> _word(11)
    number ^= number << _word(7) & _word(0x9D2C5680)
    number ^= number << _word(15) & _word(0xEFC60000)
    number ^= number >> _word(18)
    return number


def _seed(seeds: Words32, state: list[Words32]) -> None:
    """The generator's `init_by_array` for keys of one word: two passes over the state."""
    scratch = np.empty(len(seeds), np.uint32)

    def mix(before: Words32, factor: np.uint32, own: Words32 | np.uint32) -> None:
        """own ^ (before ^ before >> 30) * factor, into the scratch memory."""
        np.right_shift(before, _30, scratch)
        np.bitwise_xor(scratch, before, scratch)
        np.multiply(scratch, factor, scratch)
        np.bitwise_xor(scratch, own, scratch)

    before: Words32 = np.full(len(seeds), _FIRST_STATE[0], np.uint32)
    for own, first in zip(state[1:], _FIRST_STATE[1:], strict=True):
        mix(before, _FACTORS[0], first)
        np.add(scratch, seeds, own)
        before = own
    mix(before, _FACTORS[0], state[1])
    np.add(scratch, seeds, state[1])
    before = state[1]
    for number, own in enumerate(state[2:], 2):
        mix(before, _FACTORS[1], own)
        np.subtract(scratch, _word(number), own)
        before = own
    mix(before, _FACTORS[1], state[1])
    np.subtract(scratch, _word(1), state[1])
    state[0][:] = 1 << 31


def _walk(numbers: Words32) -> npt.NDArray[np.uint16]:
    """Where each seed's first numbers lead in the table of steps."""
    first_bits = (numbers >> _word(29)).astype(np.uint16)
    here = np.zeros(numbers.shape[1], np.uint16)
    for bits in first_bits:
        here = _STEPS[here * _EIGHT + bits]
    return here


_Swaps: TypeAlias = tuple[int, ...]  #: what the last item, the one before it, ... was swapped with


def _after(items: int, swaps: _Swaps, bits: int) -> _Swaps:
    """The swaps of a shuffle after one more number, of which these are the first three bits."""
    last = items - 1 - len(swaps)
    if last < 1:
        return swaps
    drawn = bits >> 3 - (last + 1).bit_length()
    return (*swaps, drawn) if drawn <= last else swaps  # else Python draws again


def _order(items: int, swaps: _Swaps) -> tuple[int, ...]:
    order = list(range(items))
    for last, drawn in zip(range(items - 1, 0, -1), swaps, strict=True):
        order[last], order[drawn] = order[drawn], order[last]
    return tuple(order)


def _tables() -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint8]]:
    """Both shuffles as one walk: a state is what each has swapped so far.

    The first table has the next state by eight times the state and the next number's first three
    bits, the second the code of a state, or `ORDERS` where a shuffle is not over.
    """
    states: list[tuple[_Swaps, _Swaps]] = [((), ())]
    number = {states[0]: 0}
    steps: list[int] = []
    codes: list[int] = []
    for three, four in states:  # which grows as states are found
        for bits in range(8):
            then = _after(3, three, bits), _after(4, four, bits)
            if then not in number:
                number[then] = len(states)
                states.append(then)
            steps.append(number[then])
        over = len(three) == 2 and len(four) == 3
        codes.append(_code(_order(3, three), _order(4, four)) if over else ORDERS)
    return np.array(steps, np.uint16), np.array(codes, np.uint8)


def _first_state() -> list[np.uint32]:
    """What seeding begins with, whatever the seed."""
    state = [19650218]
    for number in range(1, _STATE):
        state.append((1812433253 * (state[-1] ^ state[-1] >> 30) + number) % (1 << 32))
    return [_word(value) for value in state]


_30 = _word(30)
_FACTORS = (_word(1664525), _word(1566083941))
_FIRST_STATE = _first_state()
_EIGHT = np.uint16(8)
_STEPS, _CODES = _tables()


# -- MD5 -------------------------------------------------------------------------------------------

_BLOCK = 64  # bytes
_TRAILER = 9  # bytes after a text, at least: a mark and its length
_TEXTS = 4096  # texts: what is worked on stays in the caches
_SINES = [_word(int(abs(math.sin(i + 1)) * 2**32)) for i in range(64)]
_TURNS = ((7, 12, 17, 22), (5, 9, 14, 20), (4, 11, 16, 23), (6, 10, 15, 21))
_START = tuple(_word(w) for w in (0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476))


def md5_heads(data: npt.NDArray[np.uint8], ends: npt.NDArray[Any]) -> Words32:
    """The first 32 bits, big-endian, of the MD5 of each text.

    The texts lie one after another in `data`; text i is `data[ends[i]:ends[i + 1]]`.
    """
    starts, sizes = np.asarray(ends[:-1], np.int64), np.diff(ends).astype(np.int64)
    heads = np.empty(len(sizes), np.uint32)
    blocks = (sizes + _TRAILER + _BLOCK - 1) // _BLOCK
    for count in np.unique(blocks):
        width = int(count) * _BLOCK
        # The last texts are as long as any, so their windows reach past the end.
        padded = np.concatenate([data, np.zeros(width, np.uint8)])
        windows = np.lib.stride_tricks.sliding_window_view(padded, width)
        which = np.flatnonzero(blocks == count)
        for begin in range(0, len(which), _TEXTS):
            part = which[begin : begin + _TEXTS]
            heads[part] = _digest(_padded(windows[starts[part]], sizes[part]))
    return heads


def _padded(text: npt.NDArray[np.uint8], sizes: npt.NDArray[np.int64]) -> Words32:
    """The blocks to digest, [words, texts]: what follows a text is cleared, marked and measured."""
    text *= np.arange(text.shape[1]) < sizes[:, None]
    text[np.arange(len(text)), sizes] = 0x80
    words = text.view("<u4")
    words[:, -2] = sizes * 8
    return np.ascontiguousarray(words.T)


def _digest(words: Words32) -> Words32:
    total = [np.full(words.shape[1], start, np.uint32) for start in _START]
    for block in range(0, len(words), 16):
        for own, more in zip(total, _rounds(total, words[block : block + 16]), strict=True):
            own += more
    return total[0].byteswap()


def _rounds(total: list[Words32], block: Words32) -> tuple[Words32, ...]:
    a, b, c, d = (part.copy() for part in total)
    for step in range(64):
        if step < 16:
            mixed, place = d ^ (b & (c ^ d)), step
        elif step < 32:
            mixed, place = c ^ (d & (b ^ c)), (5 * step + 1) % 16
        elif step < 48:
            mixed, place = b ^ c ^ d, (3 * step + 5) % 16
        else:
            mixed, place = c ^ (b | ~d), 7 * step % 16
        mixed += a
        mixed += block[place]
        mixed += _SINES[step]
        turn = _TURNS[step // 16][step % 4]
        turned = mixed << _word(turn)
        mixed >>= _word(32 - turn)
        turned |= mixed
        turned += b
        a, b, c, d = d, turned, b, c
    return a, b, c, d
