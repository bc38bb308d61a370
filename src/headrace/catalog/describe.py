"""What is in a dataset, as plain values: the content of `headrace inspect`."""

from __future__ import annotations

from typing import Any

from headrace.catalog.catalog import Catalog
from headrace.catalog.manifest import FORMAT_VERSION, MISSING
from headrace.catalog.source import ROLES
from headrace.config import plain
from headrace.decoding.header import read_header
from headrace.errors import HeadraceError
from headrace.formats.features import Field


def describe(catalog: Catalog, *, instructions: int = 5) -> dict[str, Any]:
    """Splits, cameras, fields, roles and examples of instructions; JSON-ready."""
    frames = catalog.level == "frames"
    return {
        "name": catalog.name,
        "version": catalog.version,
        "path": str(catalog.path),
        "registry_name": catalog.roles.known.name if catalog.roles.known else None,
        "splits": {
            split: {
                "episodes": sum(stamp.episodes for stamp in shards),
                "steps": sum(stamp.steps for stamp in shards) if frames else None,
                "shards": len(shards),
                "bytes": sum(stamp.size for stamp in shards if stamp.size != MISSING),
            }
            for split, shards in catalog.splits.items()
        },
        "cameras": [_camera(catalog, field) for field in catalog.schema.cameras],
        "fields": [
            {
                "key": field.key,
                "dtype": field.dtype,
                "shape": list(field.shape),
                "per_step": field.per_step,
                "kind": field.kind,
                "nesting": field.nesting,
                "encoding": field.encoding,
            }
            for field in catalog.schema.fields
        ],
        "roles": {
            role: field.key if (field := getattr(catalog.roles, role)) is not None else None
            for role in ROLES
        },
        "missing_roles": [plain(each) for each in catalog.roles.missing],
        "instructions": _instructions(catalog, instructions) if frames else [],
        "quarantined": len(catalog.quarantined),
        "catalog": {
            "path": str(catalog.folder),
            "bytes": catalog.nbytes,
            "level": catalog.level,
            "checksums": catalog.checksums,
            "format_version": FORMAT_VERSION,
        },
    }


def _camera(catalog: Catalog, field: Field) -> dict[str, Any]:
    """A camera as its schema declares it, completed from the first frame's own header."""
    height, width, channels = (*field.shape, None, None, None)[:3]
    encoding, mean_bytes = field.encoding, None
    if catalog.level == "frames":
        mean_bytes = catalog.mean_frame_bytes(field.key)
        first = _first_frame(catalog, field)
        if first is not None:
            header = read_header(first)
            encoding = header.encoding
            height, width = height or header.height, width or header.width
            channels = channels or header.channels
    return {
        "key": field.key,
        "name": field.name,
        "height": height,
        "width": width,
        "channels": channels,
        "dtype": field.dtype,
        "encoding": encoding,
        "mean_bytes": mean_bytes,
    }


def _first_frame(catalog: Catalog, field: Field) -> bytes | None:
    """The first frame of a camera that some early episode has."""
    for episode in range(min(len(catalog), 16)):
        if episode not in catalog.quarantined and catalog.steps[episode]:
            try:
                return catalog.encoded(episode, 0, field.key)
            except HeadraceError:
                continue
    return None


def _instructions(catalog: Catalog, count: int) -> list[str]:
    """Some different instructions, from episodes spread over the dataset."""
    found: dict[str, None] = {}
    stride = max(1, len(catalog) // (4 * count))
    for episode in range(0, len(catalog), stride):
        if len(found) == count:
            break
        if episode in catalog.quarantined or not catalog.steps[episode]:
            continue
        if text := catalog.instruction(episode).strip():
            found.setdefault(text)
    return list(found)
