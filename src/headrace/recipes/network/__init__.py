"""Network measurements as tokens: Parquet rows to windows of 64, to sequences of 1,024.

The tokenizer needs no framework: `prepare` (once a row), then `tokenize_windows` (once a window and
epoch). `reference` is its plain twin, `decode` its inverse. The model and its trainer are in
`model` and `train`, which need JAX.

>>> from headrace.recipes.network import prepare, tokenize
>>> columns = prepare(table)                                 # doctest: +SKIP
>>> rows = {name: values[:64] for name, values in columns.items()}   # doctest: +SKIP
>>> tokenize(rows, window=0, epoch=0, seed=0, out=fields)    # doctest: +SKIP
"""

from headrace.recipes.network.decode import Measurement, decode
from headrace.recipes.network.findings import Findings
from headrace.recipes.network.prepare import PREPARED, prepare, survey
from headrace.recipes.network.tokenize import FIELDS, tokenize, tokenize_windows
from headrace.recipes.network.vocabulary import COLUMNS, LENGTH, ROWS, VOCABULARY

__all__ = [
    "COLUMNS",
    "FIELDS",
    "LENGTH",
    "PREPARED",
    "ROWS",
    "VOCABULARY",
    "Findings",
    "Measurement",
    "decode",
    "prepare",
    "survey",
    "tokenize",
    "tokenize_windows",
]
