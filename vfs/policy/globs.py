"""Path patterns: "ckpt/**", "**/*.{jpg,png}", "data/[!_]*/part-??".

Pure: no I/O, no clock. A pattern states the whole lake path, so it is anchored at both ends:

    *        any characters but "/"; a component that is "*" alone has at least one
    ?        one character but "/"
    **       as a component: any number of components, none included; "ckpt/**" matches "ckpt" too
    [a-z]    one of these characters, [!a-z] one of the others; [*] is a plain *
    {a,b}    either

Braces are expanded first, so that each pattern left has one literal start and one literal end to look it up by.
"""

from __future__ import annotations

import re

import msgspec

EXPANSIONS_MAX = 64
_WILD = re.compile(r"[*?\[]")


class Landmarks(msgspec.Struct, frozen=True):
    """What a path must literally have to match a pattern; by this candidates are found.

    Attributes:
        prefix: leading components without wildcards, "" where there are none.
        name: the last component where it has no wildcards, else "".
        components: further ones without wildcards, anywhere between.
        extension: text after the last "." where the last component ends with such text literally, else "".
        decisive: "prefix", "name" or "extension" where having that is all that the pattern asks for, else "".
    """

    prefix: str
    name: str
    components: tuple[str, ...]
    extension: str
    decisive: str = ""


def expand_braces(pattern: str) -> list[str]:
    """Return the patterns that `pattern` stands for, without braces.

    Raises:
        ValueError: braces that don't pair, are nested, or stand for more than `EXPANSIONS_MAX` patterns.
    """
    opened = pattern.find("{")
    if opened < 0:
        if "}" in pattern:
            raise ValueError(f'{pattern!r} has a "}}" without "{{": write [}}] for the character itself')
        return [pattern]
    closed = pattern.find("}", opened)
    if closed < 0 or "{" in pattern[opened + 1 : closed] or "}" in pattern[:opened]:
        raise ValueError(f"{pattern!r} has braces that don't pair: write {{a,b}}, not nested")
    rests = expand_braces(pattern[closed + 1 :])
    found = [pattern[:opened] + choice + rest for choice in pattern[opened + 1 : closed].split(",") for rest in rests]
    if len(found) > EXPANSIONS_MAX:
        raise ValueError(f"{pattern!r} stands for more than {EXPANSIONS_MAX} patterns: use wildcards, or several rules")
    return found


def normalise(pattern: str) -> str:
    """Return a brace-free pattern without outer slashes and repeated "**".

    Raises:
        ValueError: it can match no path, or not what its writer thinks.
    """
    components = pattern.strip("/").split("/")
    for component in components:
        if component in (".", "..") or (component == "" and len(components) > 1):
            raise ValueError(f'{pattern!r} can match nothing: paths have no empty, "." or ".." components')
        if "**" in component and component != "**":
            raise ValueError(f'{pattern!r}: "**" stands for whole components: write **/*{component.replace("**", "")}')
    kept = [part for index, part in enumerate(components) if part != "**" or index == 0 or components[index - 1] != "**"]
    return "/".join(kept)


def to_regex(pattern: str) -> str:
    """Return the regular expression, for fullmatch with DOTALL, of a normalised pattern.

    Raises:
        ValueError: a "[" without "]", or a range that runs backwards.
    """
    components = pattern.split("/")
    if components == ["**"]:
        return ".*"
    regex = ""
    for index, component in enumerate(components):
        last = index == len(components) - 1
        if component != "**":
            regex += _component_regex(component, pattern) + ("" if last else "/")
        elif last:
            regex = f"{regex.removesuffix('/')}(?:/.*)?"
        else:
            regex += "(?:.*/)?"
    return regex


def landmarks(pattern: str) -> Landmarks:
    """Return what every path that the normalised pattern matches literally has."""
    components = pattern.split("/")
    static = 0
    while static < len(components) and not _WILD.search(components[static]):
        static += 1
    prefix, between, last = "/".join(components[:static]), components[static:-1], components[-1]
    literal = tuple(component for component in between if not _WILD.search(component))
    if not _WILD.search(last):
        return Landmarks(prefix, last, literal, "", "name" if components[:-1] == ["**"] else "")
    tail = re.split(r"[*?\]]", last)[-1]
    extension = tail.rpartition(".")[2] if "." in tail else ""
    if static and components[static:] == ["**"]:
        return Landmarks(prefix, "", literal, extension, "prefix")
    return Landmarks(
        prefix, "", literal, extension, "extension" if extension and components == ["**", f"*.{extension}"] else ""
    )


def _component_regex(component: str, pattern: str) -> str:
    if component == "*":
        return "[^/]+"
    regex, at = "", 0
    while at < len(component):
        character = component[at]
        if character == "[":
            text, at = _set_regex(component, at, pattern)
            regex += text
            continue
        regex += {"*": "[^/]*", "?": "[^/]"}.get(character) or re.escape(character)
        at += 1
    return regex


def _set_regex(component: str, opened: int, pattern: str) -> tuple[str, int]:
    """Return the regular expression of the set that opens at `opened`, and where it ends (exclusive)."""
    negated = component[opened + 1 : opened + 2] == "!"
    first = opened + 1 + negated
    closed = component.find("]", first + 1)  # a "]" right after the opening is a member
    if closed < 0:
        raise ValueError(f'{pattern!r} has a "[" without "]": write [[] for the character itself')
    members = re.sub(r"([\\\[\]^&~|])", r"\\\1", component[first:closed])
    text = f"[^/{members}]" if negated else f"[{members}]"
    try:
        re.compile(text)
    except re.error as exc:
        raise ValueError(f"{pattern!r}: {component[opened : closed + 1]} is no set of characters: {exc.msg}") from exc
    return text, closed + 1
