"""What the training programs share: configs, run folders, checkpoints, loggers, profile, verdict.

`compose`, `options` and `run_folder` need no framework: a command line is read and checked before
torch is imported.
"""
