"""What was odd about the rows of a file, counted."""

from __future__ import annotations

from dataclasses import dataclass, fields

__all__ = ["Findings"]

_WORDS = {
    "no_source": "without a source address (all zeros)",
    "no_destination": "without a destination address (all zeros)",
    "bad_addresses": "with an address that is none, or of the other version (all zeros)",
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
