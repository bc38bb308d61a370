"""Makes headrace's docstrings Markdown, for the reference that mkdocstrings generates."""

import ast
import re

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n\S.*)*", re.M)


class Docstrings(griffe.Extension):
    """Examples (`>>>`) become blocks of code, and `option(default, meaning)` a documented field."""

    def on_package(self, *, pkg: griffe.Module, **_: object) -> None:
        """Called when a package has been read."""
        unseen: list[griffe.Object | griffe.Alias] = [pkg]
        while unseen:
            found = unseen.pop()
            if found.docstring:
                found.docstring.value = EXAMPLE.sub(_fenced, found.docstring.value)
            if isinstance(found, griffe.Attribute):
                _take_meaning(found)
            unseen += [member for member in found.members.values() if not member.is_alias]


def _fenced(example: re.Match[str]) -> str:
    return "```pycon\n" + re.sub(r" *# doctest: .*", "", example[0]) + "\n```"


def _take_meaning(field: griffe.Attribute) -> None:
    value = field.value
    if isinstance(value, griffe.ExprCall) and str(value.function) == "option":
        meaning = ast.literal_eval(str(value.arguments[1]))
        field.docstring = griffe.Docstring(meaning, parent=field)
        field.value = value.arguments[0]
