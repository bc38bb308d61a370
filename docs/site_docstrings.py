"""Makes headrace's docstrings Markdown: examples (`>>>`) become blocks of code."""

import re

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n\S.*)*", re.M)


class Examples(griffe.Extension):
    """Fences every example of a package's docstrings."""

    def on_package(self, *, pkg: griffe.Module, **_: object) -> None:
        """Called when a package has been read."""
        unseen: list[griffe.Object | griffe.Alias] = [pkg]
        while unseen:
            found = unseen.pop()
            if found.docstring:
                found.docstring.value = EXAMPLE.sub(_fenced, found.docstring.value)
            unseen += [member for member in found.members.values() if not member.is_alias]


def _fenced(example: re.Match[str]) -> str:
    return "```pycon\n" + re.sub(r" *# doctest: .*", "", example[0]) + "\n```"
