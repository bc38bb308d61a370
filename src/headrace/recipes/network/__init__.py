"""Network measurements as tokens: Parquet rows to windows of 64, to sequences of 1,024.

>>> from headrace.recipes.network import token_loader
>>> with token_loader("DATA/train", batch_size=256) as batches:      # doctest: +SKIP
...     for batch in batches:
...         train_step(batch["inputs"])                              # int32 [256, 1024]

`token_pipeline` gives the same batches through Grain. Below them the tokenizer needs no framework:
`prepare` (once a row), then `tokenize_windows` (once a window and epoch); `decode` is its inverse.
The model and the training program are in `model` and `program`, which need JAX.
"""

from headrace.recipes.network.decode import Measurement, decode
from headrace.recipes.network.prepare import PREPARED, Findings, prepare, survey
from headrace.recipes.network.rows import OUTPUTS, TOKENS, token_loader, token_pipeline, token_rows
from headrace.recipes.network.tokenize import FIELDS, shift_targets, tokenize, tokenize_windows
from headrace.recipes.network.vocabulary import COLUMNS, LENGTH, ROWS, VOCABULARY

__all__ = [
    "COLUMNS",
    "FIELDS",
    "LENGTH",
    "OUTPUTS",
    "PREPARED",
    "ROWS",
    "TOKENS",
    "VOCABULARY",
    "Findings",
    "Measurement",
    "decode",
    "prepare",
    "shift_targets",
    "survey",
    "token_loader",
    "token_pipeline",
    "token_rows",
    "tokenize",
    "tokenize_windows",
]
