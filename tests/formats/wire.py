"""A plain writer of Example protobufs for tests, and a buffer that refuses stray reads."""

import struct
import zlib

import numpy as np


def varint(number):
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def delimited(field, payload):
    return varint(field << 3 | 2) + varint(len(payload)) + payload


def bytes_list(items):
    return delimited(1, b"".join(delimited(1, item) for item in items))


def float_list(numbers):
    return delimited(2, delimited(1, struct.pack(f"<{len(numbers)}f", *numbers)))


def int_list(numbers):
    packed = b"".join(varint(n & (1 << 64) - 1) for n in numbers)
    return delimited(3, delimited(1, packed))


def example(features):
    entries = b"".join(
        delimited(1, delimited(1, name.encode()) + delimited(2, feature))
        for name, feature in features.items()
    )
    return delimited(1, entries)


class Guarded:
    """Bytes that may only be read in [start, stop)."""

    def __init__(self, data, start, stop):
        self.data, self.start, self.stop = data, start, stop

    def __getitem__(self, index):
        if isinstance(index, slice):
            assert index.step is None
            assert self.start <= index.start <= index.stop <= self.stop
        else:
            assert self.start <= index < self.stop, f"byte {index} is outside the record"
        return self.data[index]


class RecordPlaces:
    """A walked record as `EpisodePlaces` of `formats.extract`."""

    origin = 0

    def __init__(self, record, parts):
        self.record, self.steps = record, record.steps
        self.index = {part.key: number for number, part in enumerate(parts)}

    def start(self, part):
        return self.record.starts[self.index[part.key]]

    def size(self, part):
        return self.record.sizes[self.index[part.key]]

    def ends(self, part):
        return np.array(self.record.ends[self.index[part.key]] or [], np.uint32)

    def crcs(self, part):
        crcs = self.record.crcs[self.index[part.key]]
        return None if crcs is None else np.array(crcs, np.uint32)


def everything_record(steps):
    """A record of `schemas.EVERYTHING`."""
    numbers = range(steps)
    zipped = [np.full((t, 2), t, np.int16) for t in numbers]
    return example(
        {
            "steps/image": bytes_list([b"\x89PNG" + bytes(t) for t in numbers]),
            "steps/action": float_list([0.5 * t for t in range(2 * steps)]),
            "steps/flag": int_list([t == 0 for t in numbers]),
            "steps/codes": int_list([-t * 1000 for t in range(3 * steps)]),
            "steps/double": bytes_list([np.array([t, 0.1]).tobytes() for t in numbers]),
            "steps/zipped/shape": int_list([n for array in zipped for n in array.shape]),
            "steps/zipped/value": bytes_list([zlib.compress(a.tobytes()) for a in zipped]),
            "steps/words/ragged_flat_values": bytes_list([b"w"] * sum(numbers)),
            "steps/words/ragged_row_lengths_0": int_list(numbers),
            "steps/nested/ragged_flat_values": float_list([1.0] * (2 * steps)),
            "steps/nested/ragged_row_lengths_0": int_list([2] * steps),
            "steps/nested/ragged_row_lengths_1": int_list([1] * (2 * steps)),
            "steps/instruction": bytes_list([f"step {t}".encode() for t in numbers]),
            "episode_metadata/path": bytes_list([b"a/b"]),
            "episode_metadata/sizes": int_list([1, 2, 300]),
        }
    )
