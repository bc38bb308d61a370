"""Coverage-guided fuzzing of everything that reads a record: `make fuzz SECONDS=60`.

The property tests beside this file hold the same promises on every run; this digs deeper. It fails
on any exception other than headrace's own, and on any read outside the record.
"""

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))

with atheris.instrument_imports(include=["headrace"]):
    from headrace.errors import HeadraceError
    from headrace.formats.extract import index_record, plan, values
    from headrace.formats.features import parse_features
    from headrace.formats.tfrecord import record_places

from tests.formats.schemas import EVERYTHING
from tests.formats.wire import Guarded, RecordPlaces, everything_record

SCHEMA = parse_features(EVERYTHING)
PARTS = plan(SCHEMA)


def one_input(data):
    try:
        list(record_places(lambda at, n: data[at : at + n], len(data)))
    except HeadraceError:
        pass
    buffer = Guarded(b"\xff" * 5 + data + b"\xff" * 5, 5, 5 + len(data))
    try:
        record = index_record(buffer, buffer.start, buffer.stop, PARTS)
    except HeadraceError:
        return
    places = RecordPlaces(record, PARTS)
    for field in SCHEMA.fields:
        try:
            values(
                field,
                places,
                lambda offset, length: buffer[5 + offset : 5 + offset + length],
                0,
                record.steps,
            )
        except HeadraceError:
            pass


def main():
    # A valid record to start from, so that the fuzzer need not discover protobuf by itself.
    corpus = Path(sys.argv[0]).with_name(".fuzz-corpus")
    corpus.mkdir(exist_ok=True)
    for steps in (0, 1, 3):
        (corpus / f"seed-{steps}").write_bytes(everything_record(steps))
    atheris.Setup([*sys.argv, str(corpus), "-max_len=4096"], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
