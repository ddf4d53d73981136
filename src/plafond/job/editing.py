"""Changing single values in the text of a job file; every other character stays as it is.

The YAML parser says where each value stands, and only that piece of the text is replaced; a key that is missing gets a
line of its own. Comments, order, quotes and indentation are never written anew. JSON is read as the YAML that it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from plafond.job.document import KeyPath
from plafond.job.json_text import without_comments
from plafond.job.keys import SECTIONS
from plafond.job.scalars import resolve_scalar
from plafond.job.source import dotted
from plafond.language.said import N_, SaidError

MISSING = N_("the file has no {key}")
_PLAIN = re.compile(r"[A-Za-z][\w ./+-]*(?<! )")
_PROPERTY = re.compile(r"[&!][^\s,\[\]{}]*[ \t]+")
_ALIAS = re.compile(r"[ \t]*:[ \t]+(\*[^\s,\[\]{}]+)")
_STRING_OR_TAB = re.compile(r'("(?:[^"\\\n]|\\.)*")|\t')


class EditError(SaidError):
    """The text does not let itself be changed in this place; the message says why."""


def edit(text: str, process: int, values: Mapping[str, Any], *, suffix: str = ".yaml") -> str:
    """Set values of one process of a job file.

    A value that the file has under another name of the same setting (``rank`` for ``linear``) is changed there.

    Args:
        text: the job file.
        process: index of the process.
        values: new values by their dotted keys, as ``train.batch_size`` or ``datasets.0.resolution``.
        suffix: of the file's name; tells JSON from YAML.

    Raises:
        EditError: a place does not exist, or cannot be changed without touching others.
    """
    for key, value in values.items():
        parts = [int(part) if part.isdecimal() else part for part in key.split(".")]
        names = _present(text, process, parts, suffix)
        for name in names or [str(parts[-1])]:
            text = Editor(text, suffix).set(("config", "process", process, *parts[:-1], name), value)
    return text


def set_value(text: str, path: KeyPath, value: Any, *, suffix: str = ".yaml") -> str:
    """Set one value of a job file by its path from the top, as ``("config", "name")``.

    Raises:
        EditError: the place does not exist, or cannot be changed without touching others.
    """
    return Editor(text, suffix).set(path, value)


def _present(text: str, process: int, parts: list[str | int], suffix: str) -> list[str]:
    """Under which names the file has a setting."""
    section = ".".join(part for part in parts[:-1] if isinstance(part, str))
    if isinstance(parts[-1], int) or section not in SECTIONS:
        return []
    inputs = SECTIONS[section].model.inputs
    aliases = [name for name, declared in inputs.items() if declared.into == parts[-1]]
    owner = Editor(text, suffix).find(("config", "process", process, *parts[:-1]))
    if not isinstance(owner, MappingNode):
        return []
    given = {key.value: value for key, value in owner.value}
    return [name for name in (str(parts[-1]), *aliases) if name in given and not _is_null(given[name])]


def _is_null(node: Node) -> bool:
    return isinstance(node, ScalarNode) and not node.style and resolve_scalar(node.value) is None


class Editor:
    """A job file's text, and where its parser finds each value.

    Args:
        text: the job file.
        suffix: of its name; tells JSON from YAML.
    """

    def __init__(self, text: str, suffix: str):
        self.text = text
        self.json = suffix.lower() in (".json", ".jsonc")
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.root = self._compose()

    def _compose(self) -> Node:
        yaml = YAML(typ="safe", pure=True)
        yaml.version = (1, 1)
        text = self.text
        if self.json:
            # every character keeps its place
            text = _STRING_OR_TAB.sub(lambda match: match[1] or " ", without_comments(text))
        try:
            root: Node = yaml.compose(StringIO(text))
        except (MarkedYAMLError, ReaderError) as error:
            raise EditError(N_("the file cannot be changed by a program as it is written")) from error
        return root

    def find(self, path: KeyPath) -> Node | None:
        """The node at a path, without what `<<` brings in."""
        node: Node | None = self.root
        for part in path:
            node = _child(node, part)
        return node

    def set(self, path: KeyPath, value: Any) -> str:
        """The text with another value at a path."""
        known = len(path)
        while known and self.find(path[:known]) is None:
            known -= 1
        node = self.find(path[:known])
        assert node is not None
        rest = path[known:]
        if any(isinstance(part, int) for part in rest):
            raise EditError(MISSING, key=dotted(path))
        if not rest:
            return self._replace(path, node, value)
        for part in reversed(rest[1:]):
            value = {part: value}
        if _is_null(node):  # "plafond:" with nothing after it
            return self.set(path[:known], {rest[0]: value})
        if not isinstance(node, MappingNode):
            raise EditError(N_("{key} is not a mapping in the file"), key=dotted(path[:known]))
        return self._insert(node, str(rest[0]), value)

    def _replace(self, path: KeyPath, node: Node, value: Any) -> str:
        start, stop = node.start_mark.index, node.end_mark.index
        parent = self.find(path[:-1])
        if isinstance(parent, MappingNode):
            key = next(key for key, _ in parent.value if key.value == path[-1])
            found = _ALIAS.match(self.text, key.end_mark.index)
            if found:  # what stands at the anchor belongs to others
                return self._splice(found.start(1), found.end(1), self._inline(value))
            if _is_null(node):
                return self._fill(key, node, value)
        if isinstance(node, SequenceNode) and not node.flow_style:
            return self._relist(node, value)
        if isinstance(node, MappingNode) and not node.flow_style:
            raise EditError(N_("{key} is a mapping in the file"), key=dotted(path))
        if isinstance(node, ScalarNode) and node.style in ("|", ">"):
            raise EditError(N_("{key} is a text of several lines in the file"), key=dotted(path))
        if properties := _PROPERTY.match(self.text, start):
            start = properties.end()
        return self._splice(start, stop, self._inline(value))

    def _fill(self, key: Node, node: Node, value: Any) -> str:
        """Give a value to a key that has none, or null."""
        colon = self.text.index(":", key.end_mark.index) + 1
        stop = max(colon, node.end_mark.index) if node.value else colon
        if isinstance(value, dict) and not self.json:
            lines = self._block(value, key.start_mark.column + 2)
            return self._splice(colon, stop, self.newline + self.newline.join(lines))
        return self._splice(colon, stop, " " + self._inline(value))

    def _relist(self, node: SequenceNode, value: Any) -> str:
        """Take items out of a block sequence, with their lines, and put new ones on lines of their own."""
        items = [resolve_scalar(item.value) for item in node.value if isinstance(item, ScalarNode)]
        wanted = list(value) if isinstance(value, (list, tuple)) else [value]
        kept = [item for item in wanted if item in items]
        plain = len(items) == len(node.value) and not any(isinstance(item, (list, dict)) for item in wanted)
        plain &= not self._indent(node).strip()
        if not plain or not wanted or [item for item in items if item in wanted] != kept:
            raise EditError(
                N_("a list that stands on several lines can only lose items and be given new ones")
            )
        lines = self.text.splitlines(keepends=True)
        at = {item: found.start_mark.line for item, found in zip(items, node.value, strict=True)}
        before = min(at.values()) - 1
        added: dict[int, list[str]] = {}
        for item in wanted:
            if item in at:
                before = at[item]
            else:
                added.setdefault(before, []).append(
                    f"{self._indent(node)}- {self._inline(item)}{self.newline}"
                )
        gone = {line for item, line in at.items() if item not in wanted}
        if added and not lines[max(added)].endswith("\n"):
            lines[max(added)] += self.newline
        return "".join(
            line
            for number, known in enumerate(lines)
            for line in ([] if number in gone else [known]) + added.get(number, [])
        )

    def _insert(self, owner: MappingNode, key: str, value: Any) -> str:
        """Add a key behind the last one of a mapping."""
        if owner.flow_style:
            return self._insert_flow(owner, key, value)
        column = owner.value[0][0].start_mark.column
        lines = self.text.splitlines(keepends=True)
        last = self._last_line(owner)
        if not lines[last].endswith("\n"):
            lines[last] += self.newline
        lines[last + 1 : last + 1] = [line + self.newline for line in self._block({key: value}, column)]
        return "".join(lines)

    def _insert_flow(self, owner: MappingNode, key: str, value: Any) -> str:
        pair = f"{json.dumps(key) if self.json else key}: {self._inline(value)}"
        if not owner.value:
            return self._splice(owner.start_mark.index, owner.end_mark.index, f"{{{pair}}}")
        first, last = owner.value[0][0], owner.value[-1][1]
        gap = " "
        if owner.start_mark.line != first.start_mark.line:
            gap = self.newline + self._indent(first)
        return self._splice(last.end_mark.index, last.end_mark.index, f",{gap}{pair}")

    def _indent(self, node: Node) -> str:
        start = node.start_mark.index - node.start_mark.column
        return self.text[start : node.start_mark.index]

    def _last_line(self, node: Node) -> int:
        """The line on which a node ends, without the comments and empty lines behind it."""
        if isinstance(node, MappingNode) and not node.flow_style and node.value:
            key, value = node.value[-1]
            return max(int(key.end_mark.line), self._last_line(value))
        if isinstance(node, SequenceNode) and not node.flow_style and node.value:
            return self._last_line(node.value[-1])
        if isinstance(node, ScalarNode) and node.style in ("|", ">"):
            lines = self.text[: node.end_mark.index].rstrip()
            return lines.count("\n")
        if isinstance(node, ScalarNode) and not node.value:
            return 0  # nothing is written; its key has a line
        return int(node.end_mark.line)

    def _block(self, value: Mapping[str, Any], column: int) -> list[str]:
        lines = []
        for key, inner in value.items():
            if isinstance(inner, dict) and inner:
                lines += [f"{' ' * column}{key}:", *self._block(inner, column + 2)]
            else:
                lines.append(f"{' ' * column}{key}: {self._inline(inner)}")
        return lines

    def _inline(self, value: Any) -> str:
        if isinstance(value, tuple):
            value = list(value)
        if isinstance(value, str) and not self.json and _PLAIN.fullmatch(value):
            return value if resolve_scalar(value) == value else json.dumps(value)
        return json.dumps(value, ensure_ascii=False)

    def _splice(self, start: int, stop: int, new: str) -> str:
        return self.text[:start] + new + self.text[stop:]


def _child(node: Node | None, part: str | int) -> Node | None:
    if isinstance(node, MappingNode):
        return next((value for key, value in node.value if key.value == part), None)
    if isinstance(node, SequenceNode) and isinstance(part, int) and part < len(node.value):
        found: Node = node.value[part]
        return found
    return None
