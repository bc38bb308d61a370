"""Rows of every kind, as hypothesis draws them, and as a table."""

import pyarrow as pa
from hypothesis import strategies as st

from benchmarks.network_plain import Row
from headrace.recipes.network.prepare import prepare

NOW = 1_700_000_000_000_000_000
FIRST, LAST = -(2**63) + 1, 2**63 - 1  # nanoseconds that a timestamp may have


@st.composite
def rows(draw):
    version = draw(st.sampled_from([4, 6]))
    text = st.ip_addresses(v=version).map(str)
    address = st.one_of(text, text, st.none(), st.just(""))
    near = st.integers(NOW, NOW + 10**13)
    return Row(
        time=draw(st.one_of(near, near, near, st.integers(FIRST, LAST))),
        src=draw(address),
        dst=draw(address),
        version=version,
        rtt=draw(st.one_of(st.floats(0, 1000), st.floats(), st.none())),
    )


def table(made):
    return pa.table(
        {
            "event_time": pa.array([row.time for row in made], pa.timestamp("ns", "UTC")),
            "src_addr": pa.array([row.src for row in made], pa.string()),
            "dst_addr": pa.array([row.dst for row in made], pa.string()),
            "ip_version": pa.array([row.version for row in made], pa.int64()),
            "rtt": pa.array([row.rtt for row in made], pa.float64()),
        }
    )


def prepared(made, windows=1):
    """Prepared columns of [windows, rows, ...]."""
    each = len(made) // windows
    return {
        name: values.reshape(windows, each, *values.shape[1:])
        for name, values in prepare(table(made)).items()
    }
