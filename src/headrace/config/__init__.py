"""Mixtures as people write them: YAML <-> frozen objects, with dotted overrides.

    root: /data/oxe                              # datasets known by name lie below it
    defaults: {split: "train[:90%]", val_split: "train[90%:]"}
    sources:
      - {name: bridge, weight: 0.03}             # a share; a name of the registry
      - {name: mine, path: mine/1.0.0, offset: 5}  # no weight: its part of the rest, by pairs

A relative path is relative to the YAML file, in an override to the current folder. Everything is
checked on loading and errors name the key path, so nothing is opened for a mixture with a typo.
"""

from headrace.config.documents import overridden, packaged_mixtures, read_document, to_yaml
from headrace.config.mixture import Mixture, Source
from headrace.config.typed import nearest, plain, shown, typed

__all__ = [
    "Mixture",
    "Source",
    "nearest",
    "overridden",
    "packaged_mixtures",
    "plain",
    "read_document",
    "shown",
    "to_yaml",
    "typed",
]
