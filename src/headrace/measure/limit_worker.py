"""A process that measures its part of the decode limit."""

from headrace.measure.limit import tight_loop
from headrace.processes import serve

if __name__ == "__main__":
    serve(tight_loop)
