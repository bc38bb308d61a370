"""YAML documents into plain values, with dotted overrides; OmegaConf stays in here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from headrace.config.typed import nearest, shown, unknown_key
from headrace.errors import UsageError

TOP_KEYS = ("root", "defaults", "sources", "only")


def packaged_mixtures() -> list[str]:
    """Names of the mixtures that come with headrace.

    >>> packaged_mixtures()
    ['oxe29']
    """
    return sorted(each.name[:-5] for each in _data().iterdir() if each.name.endswith(".yaml"))


def _data() -> Any:
    return resources.files("headrace").joinpath("data")


def is_inline(mixture: Any) -> bool:
    """Whether a mixture is given as YAML text, rather than as a file or a name."""
    return isinstance(mixture, str) and mixture.lstrip().startswith("{")


def find_mixture(mixture: str | Path) -> tuple[dict[str, Any], Path | None]:
    """The plain values of what a user calls a mixture, and its file; None: it is the text itself.

    It is a YAML file, the name of a packaged mixture, or the YAML written inline:
    `{root: /data/oxe, sources: [{name: bridge}]}`.
    """
    if not isinstance(mixture, str | Path):
        raise UsageError(
            f"the mixture is {shown(mixture)}",
            remedy="Give a Mixture, a YAML file, or the name of a packaged mixture; "
            "hr.Mixture.from_dict(...) makes one from plain values.",
        )
    if is_inline(mixture):
        return _read(lambda config: config.create(mixture), "mixture", "sources"), None
    file = Path(mixture).expanduser()
    if str(mixture) in packaged_mixtures() and not file.is_file():
        file = Path(str(_data().joinpath(f"{mixture}.yaml")))
    try:
        return read_document(file), file
    except UsageError as error:
        raise error.within(file=str(file)) from None


def read_document(
    file: Path,
    what: str = "mixture",
    packaged: Sequence[str] | None = None,
    begins: str = "sources",
) -> dict[str, Any]:
    """The plain values of a YAML file, `${...}` not yet resolved."""
    if not file.is_file():
        known = packaged_mixtures() if packaged is None else packaged
        near = nearest(file.stem, known, "Did you mean the packaged {!r}? ")
        raise UsageError(
            f"there is no such {what} file",
            remedy=f"{near}Packaged: {', '.join(known)}.",
        )
    return _read(lambda config: config.load(file), what, begins)


def _read(load: Callable[[Any], Any], what: str, begins: str) -> dict[str, Any]:
    from omegaconf import DictConfig, OmegaConf

    try:
        config = load(OmegaConf)
    except Exception as error:  # OmegaConf lets those of YAML, of decoding and of the OS through
        raise UsageError(f"cannot read the {what}: {_line(error)}", remedy="Correct it.") from None
    if not isinstance(config, DictConfig):
        raise UsageError(f"the {what} is a list", remedy=f"It begins with `{begins}:`.")
    values: Any = OmegaConf.to_container(config, resolve=False)
    return dict(values)


def parse_override(override: str) -> tuple[str, Any]:
    """The key path and the value of `key.path=value`; the value is YAML.

    >>> parse_override("sources.bridge.weight=0.5")
    ('sources.bridge.weight', 0.5)
    """
    from omegaconf import OmegaConf

    key, equals, text = override.partition("=")
    if not equals:
        raise UsageError(f"override {override!r} has no `=`", remedy="Write key.path=value.")
    try:
        parsed: Any = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]))
    except Exception as error:
        raise UsageError(
            f"override {override!r} has no YAML value: {_line(error)}",
            remedy="Put it in quotes.",
        ) from None
    return key.strip(), parsed["value"]


def overridden(
    values: dict[str, Any], overrides: Sequence[str], what: str = "mixture"
) -> dict[str, Any]:
    """Apply `key.path=value`, then resolve `${...}`."""
    from omegaconf import OmegaConf

    if isinstance(overrides, str):
        raise UsageError(f"overrides is the text {overrides!r}", remedy="Give a list of texts.")
    for override in overrides:
        _override(values, *parse_override(override))
    try:
        resolved: Any = OmegaConf.to_container(
            OmegaConf.create(values), resolve=True, throw_on_missing=True
        )
    except Exception as error:
        raise UsageError(
            f"cannot resolve the {what}: {_line(error)}", remedy="Correct it."
        ) from None
    return dict(resolved)


def _override(values: dict[str, Any], key: str, value: Any) -> None:
    head, _, rest = key.partition(".")
    if isinstance(value, str) and (key == "root" or key.endswith(".path")):
        fixed = "://" in value or "${" in value
        value = value if fixed else str(Path(value).expanduser().absolute())
    if not rest and head in TOP_KEYS:
        values[head] = value
    elif head == "defaults":
        values["defaults"] = {**_dict(values.get("defaults")), rest: value}
    elif head == "sources":
        listed = values.get("sources")
        entries = [_dict(each) for each in listed] if isinstance(listed, list) else []
        name, _, last = rest.rpartition(".")
        for entry in entries:
            if str(entry.get("name")) == name:
                entry[last] = value
                return
        names = [str(entry.get("name")) for entry in entries]
        raise UsageError(
            f"override {key!r} names no source of the mixture and a key of it",
            remedy=f"{nearest(name or rest, names)}Sources: {', '.join(names)}.",
        )
    else:
        raise unknown_key(head, "an override", TOP_KEYS)


def _dict(value: Any) -> dict[str, Any]:
    """A mapping itself; of anything else, which is complained of later, an empty one."""
    return value if isinstance(value, dict) else {}


def to_yaml(values: dict[str, Any]) -> str:
    """Plain values as a YAML document."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(values))


def _line(error: Exception) -> str:
    """A library's message in one line."""
    return " ".join(str(error).split()) or type(error).__name__
