"""What the training programs share: configs, run folders, checkpoints, loggers, profile, verdict.

`compose`, `options`, `run_folder` and `made_data` need no framework: a command line is read and
checked before torch is imported.
"""
