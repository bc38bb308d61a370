"""Baselines that read formats of their own, into which the data are converted first.

`headrace bench ... --versus webdataset,mosaic,grain_arrayrecord` finds them when headrace is
installed from a checkout (`headrace.measure.baselines`). What they need is in `requirements.txt`.
"""
