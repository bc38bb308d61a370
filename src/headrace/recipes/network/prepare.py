"""Everything about a measurement that depends on its row alone, done once a row.

    columns = prepare(pyarrow.parquet.read_table("shard_0000.parquet", columns=list(COLUMNS)))

`PREPARED` names the columns and what a row of each takes: 44 bytes in all. Bad rows: an address
that is null or empty is all zeros, a round-trip time that is null, NaN or infinite has failed like
a negative one, and an address that does not parse, or is not of the row's `ip_version`, is an
error unless it is to be taken as empty. `survey` counts them.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DataError, UnknownFieldError, UsageError
from headrace.recipes.network.orders import md5_heads, shuffle_codes
from headrace.recipes.network.vocabulary import COLUMNS, FAILED_CODE, encode_rtt

BadAddresses: TypeAlias = Literal["error", "empty"]
Prepared: TypeAlias = dict[str, npt.NDArray[Any]]

#: Columns after preparation: type and shape of a row.
PREPARED: dict[str, tuple[str, tuple[int, ...]]] = {
    "bytes": ("uint8", (34,)),  # source 16, destination 16, code of the round-trip time 2
    "shape": ("uint16", ()),  # 4 * code of the shuffles + 2 if IPv6 + 1 if failed
    "time": ("int64", ()),  # nanoseconds since 1970
}
SECOND = 1_000_000_000


def prepare(table: Any, *, bad_addresses: BadAddresses = "error", first_row: int = 0) -> Prepared:
    """The rows of an Arrow table as arrays of fixed width, under the names of `PREPARED`.

    `first_row` is the number of the table's first row in its file, for error messages.
    """
    return _prepare(table, bad_addresses, first_row)[0]


def survey(table: Any, *, bad_addresses: BadAddresses = "empty", first_row: int = 0) -> Findings:
    """What is odd about the rows of a table; the findings of several may be added."""
    return _prepare(table, bad_addresses, first_row, orders=False)[1]


def check_policy(bad_addresses: BadAddresses) -> None:
    """Refuse what is neither of the two."""
    if bad_addresses not in ("error", "empty"):
        raise UsageError(f"bad_addresses is {bad_addresses!r}", remedy="Give 'error' or 'empty'")


def _prepare(
    table: Any, bad_addresses: BadAddresses, first_row: int, orders: bool = True
) -> tuple[Prepared, Findings]:
    check_policy(bad_addresses)
    time = _times(_column(table, "event_time"), first_row)
    version = _versions(_column(table, "ip_version"), first_row)
    rtt = _numbers(_column(table, "rtt"), "rtt", pa.float64())
    millis = pc.fill_null(rtt, np.nan).to_numpy(zero_copy_only=False)
    ends, bad = [], np.zeros(len(time), np.bool_)
    for name in ("src_addr", "dst_addr"):
        addresses = _read_addresses(_texts(_column(table, name), name))
        wrong = addresses.disagree(version)
        if wrong.any():
            if bad_addresses == "error":
                raise _bad_address(addresses, name, int(np.argmax(wrong)), version, first_row)
            addresses.bytes[wrong] = 0
            bad |= wrong
        ends.append(addresses)
    code = encode_rtt(millis)
    prepared = {
        "bytes": np.concatenate(
            [ends[0].bytes, ends[1].bytes, code.astype(">u2").view(np.uint8).reshape(-1, 2)], 1
        ),
        "shape": (2 * (version == 6) + (code == FAILED_CODE)).astype(np.uint16),
        "time": time,
    }
    if orders:
        seeds = _order_seeds(ends[0], ends[1], time)
        prepared["shape"] += shuffle_codes(seeds).astype(np.uint16) * np.uint16(4)
    return prepared, Findings(
        rows=len(time),
        no_source=int((ends[0].family == 0).sum()),
        no_destination=int((ends[1].family == 0).sum()),
        bad_addresses=int(bad.sum()),
        failed=int((millis < 0).sum()),
        not_a_time=int((~np.isfinite(millis)).sum()),
        before_1970=int((time < 0).sum()),
        backwards=int((np.diff(time) < 0).sum()),
    )


def _order_seeds(src: _Addresses, dst: _Addresses, time: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """What the order of a row's blocks is drawn from: the MD5 of "src|dst|second"."""
    second = pc.cast(pc.divide(pa.array(time), SECOND), pa.string()).cast(pa.large_binary())
    bar = pa.scalar(b"|", pa.large_binary())
    text = pc.binary_join_element_wise(src.texts, dst.texts, second, bar)
    _, ends, data = text.buffers()
    if data is None:
        return np.zeros(0, np.uint32)
    places = np.frombuffer(ends, np.int64)[text.offset : text.offset + len(text) + 1]
    return md5_heads(np.frombuffer(data, np.uint8), places)


def _column(table: Any, name: str) -> Any:
    if name not in table.column_names:
        raise UnknownFieldError(
            f"there is no column {name!r}",
            remedy=f"Needed are {', '.join(COLUMNS)}; there are {', '.join(table.column_names)}",
        )
    column = table.column(name)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):  # what no single array can hold
            column = pa.concat_arrays(column.chunks)
    return column


def _texts(column: Any, name: str) -> Any:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_null(kind):
        return column.cast(pa.large_binary())
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or _is_view(kind)):
        raise DataError(
            f"{name} holds {kind}, not text", field=name, remedy="Write addresses as strings"
        )
    return column


def _is_view(kind: Any) -> bool:
    return bool(getattr(pa.types, "is_string_view", lambda _: False)(kind))


def _numbers(column: Any, name: str, kind: Any) -> Any:
    try:
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            return column.cast(kind)
        if pa.types.is_null(column.type):
            return column.cast(kind)
    except pa.ArrowInvalid:
        pass
    raise DataError(
        f"{name} holds {column.type}, which is not {kind}", field=name, remedy=f"Write it as {kind}"
    )


def _times(column: Any, first_row: int) -> npt.NDArray[np.int64]:
    if not pa.types.is_timestamp(column.type):
        raise DataError(
            f"event_time holds {column.type}, not timestamps",
            field="event_time",
            remedy="Write it as timestamp[ns, tz=UTC]",
        )
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise _bad_row("event_time", "null", "nothing orders it", row, first_row)
    try:
        nanos = column.cast(pa.timestamp("ns", column.type.tz)).cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise DataError(
            f"event_time does not fit nanoseconds: {error}",
            field="event_time",
            remedy="Years 1678 to 2261 do; mend or drop the others",
        ) from None
    return np.array(nanos.to_numpy(zero_copy_only=False), np.int64)


def _versions(column: Any, first_row: int) -> npt.NDArray[np.uint8]:
    values = _numbers(column, "ip_version", pa.int64())
    version = np.asarray(pc.fill_null(values, 0).to_numpy(zero_copy_only=False))
    wrong = (version != 4) & (version != 6)
    if wrong.any():
        row = int(np.argmax(wrong))
        value = "null" if not values[row].is_valid else str(version[row])
        raise _bad_row("ip_version", value, "neither 4 nor 6", row, first_row)
    return version.astype(np.uint8)


def _bad_address(
    addresses: _Addresses, name: str, row: int, version: npt.NDArray[Any], first_row: int
) -> DataError:
    text = addresses.texts[row].as_py().decode(errors="replace")
    family = int(addresses.family[row])
    why = f"IPv{family}, while ip_version is {version[row]}" if family > 1 else "no IP address"
    return _bad_row(
        name,
        repr(text),
        why,
        row,
        first_row,
        "take it as empty: token_rows(folder, bad_addresses='empty')",
    )


def _bad_row(
    name: str, value: str, why: str, row: int, first_row: int, instead: str = ""
) -> DataError:
    either = f", or {instead}" if instead else ""
    return DataError(
        f"{name} of row {first_row + row:,} is {value}: {why}",
        field=name,
        remedy=f"Mend or drop the row{either}",
    )


# -- addresses -------------------------------------------------------------------------------------

_WIDTH = 16  # bytes kept for an address; the 4 of IPv4 come first
_NONE, _BAD = 0, 1  # families beside 4 and 6


@dataclass(frozen=True, slots=True)
class _Addresses:
    """The addresses of some rows."""

    texts: Any  #: as the file has them, as an Arrow array of binary; nothing where there is none
    bytes: npt.NDArray[np.uint8]  #: [n, 16], zeros where there is none
    family: npt.NDArray[
        np.uint8
    ]  #: 4, 6, 0 where there is none, 1 where the text is not an address

    def disagree(self, version: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Rows whose text is not an address of that version; having none agrees with both."""
        wrong: npt.NDArray[np.bool_] = (self.family != _NONE) & (self.family != version)
        return wrong


def _read_addresses(column: Any) -> _Addresses:
    """Parse an Arrow array of strings, plain or dictionary-encoded.

    A file has thousands of addresses in millions of rows: each is parsed once.
    """
    if not pa.types.is_dictionary(column.type):
        column = pc.dictionary_encode(column.cast(pa.large_binary()))
    known = column.dictionary.cast(pa.large_binary())
    parsed = [parse_address(text or b"") for text in known.to_pylist()]
    parsed.append(parse_address(b""))  # for rows without one
    families = np.array([family for family, _ in parsed], np.uint8)
    packed = np.frombuffer(b"".join(data for _, data in parsed), np.uint8).reshape(-1, _WIDTH)
    which = pc.fill_null(column.indices.cast(pa.int64()), len(known)).to_numpy(zero_copy_only=False)
    texts = pc.fill_null(pc.take(known, column.indices), b"")
    return _Addresses(texts, packed[which], families[which])


@lru_cache(maxsize=1 << 16)
def parse_address(text: bytes) -> tuple[int, bytes]:
    """Family and 16 bytes of an address.

    >>> parse_address(b"10.0.0.1")[1][:4]
    b'\\n\\x00\\x00\\x01'
    """
    if not text:
        return _NONE, bytes(_WIDTH)
    try:
        address = text.decode()
        if b":" not in text:
            return 4, socket.inet_pton(socket.AF_INET, address).ljust(_WIDTH, b"\0")
        # Python's own parser knows zones (fe80::1%eth0) too, but takes ten times as long.
        if b"%" in text:
            return 6, ipaddress.IPv6Address(address).packed
        return 6, socket.inet_pton(socket.AF_INET6, address)
    except (OSError, ValueError):
        return _BAD, bytes(_WIDTH)


# -- findings --------------------------------------------------------------------------------------

_WORDS = {
    "no_source": "without a source address (all zeros)",
    "no_destination": "without a destination address (all zeros)",
    "bad_addresses": "with an address that does not parse, or is of the other version (all zeros)",
    "failed": "failed (negative round-trip time)",
    "not_a_time": "without a finite round-trip time (failed)",
    "before_1970": "before 1970 (absolute times are 0)",
    "backwards": "earlier than the row before (windows are sorted)",
}


@dataclass(frozen=True, slots=True)
class Findings:
    """Numbers of rows; they add up over row groups."""

    rows: int = 0
    no_source: int = 0  #: null or empty
    no_destination: int = 0  #: null or empty
    bad_addresses: int = 0  #: that were taken as empty
    failed: int = 0  #: negative round-trip time
    not_a_time: int = 0  #: round-trip time null, NaN or infinite
    before_1970: int = 0
    backwards: int = 0  #: earlier than the row before, in the same row group

    def __add__(self, other: Findings) -> Findings:
        names = (field.name for field in fields(self))
        return Findings(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def __str__(self) -> str:
        """One line a finding.

        >>> print(Findings(rows=1000, failed=20))
        1,000 rows
          20 failed (negative round-trip time)
        """
        found = [(getattr(self, name), words) for name, words in _WORDS.items()]
        lines = [f"  {count:,} {words}" for count, words in found if count]
        return "\n".join([f"{self.rows:,} rows", *lines])
