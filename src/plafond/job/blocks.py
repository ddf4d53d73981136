"""Changing lists, mappings and texts of several lines in a job file, as a form does; the rest of the text stays.

`plafond.job.editing` changes single values and leaves alone what stands on several lines. Here such a piece may be
replaced as a whole, and lists gain and lose items. Afterwards the text is read again: it must hold what was meant, and
nothing else may have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from plafond.job.document import DocumentError, KeyPath
from plafond.job.editing import MISSING, EditError, Editor
from plafond.job.source import dotted
from plafond.job.text import parse
from plafond.language.said import N_


def put(text: str, path: KeyPath, value: Any, *, suffix: str = ".yaml") -> str:
    """Set a value of whatever kind, in place of whatever kind.

    Args:
        text: the job file.
        path: from the top of the file, as ``("config", "process", 0, "datasets", 0, "resolution")``.
        value: plain data.
        suffix: of the file's name; tells JSON from YAML.

    Raises:
        EditError: the place does not exist, or cannot be changed without touching others.
    """

    def change(owner: Any) -> None:
        owner[path[-1]] = value

    return _checked(text, _Pieces(text, suffix).put(path, value), path[:-1], change, suffix)


def add_item(text: str, path: KeyPath, value: Any, *, suffix: str = ".yaml") -> str:
    """Put an item at the end of a list, which is made when it is not there.

    Raises:
        EditError: as for `put`.
    """

    def change(owner: Any) -> None:
        owner[path[-1]] = [*(_get(owner, path[-1]) or ()), value]

    return _checked(text, _Pieces(text, suffix).add(path, value), path[:-1], change, suffix)


def remove_item(text: str, path: KeyPath, index: int, *, suffix: str = ".yaml") -> str:
    """Take an item out of a list, with its lines.

    Raises:
        EditError: as for `put`, or there is no such item.
    """

    def change(owner: Any) -> None:
        del owner[path[-1]][index]

    return _checked(text, _Pieces(text, suffix).remove(path, index), path[:-1], change, suffix)


def _get(owner: Any, key: str | int) -> Any:
    return owner.get(key) if isinstance(owner, dict) else owner[key]


def _checked(before: str, after: str, path: KeyPath, change: Callable[[Any], None], suffix: str) -> str:
    """The new text, if it differs from the old one in what `change` does to the owner at `path` and nothing else."""
    try:
        wanted, found = (parse(text, Path(f"job{suffix}"), _Kept()).data for text in (before, after))
    except DocumentError as error:
        raise EditError(
            N_("{key} cannot be changed by a program as the file is written"), key=dotted(path)
        ) from error
    wanted = owner = deepcopy(wanted)
    for part, following in zip(path, (*path[1:], ""), strict=True):
        if isinstance(owner, dict) and owner.get(part) is None:
            owner[part] = [] if isinstance(following, int) else {}
        owner = owner[part]
    change(owner)
    if wanted != found:
        raise EditError(
            N_("{key} cannot be changed by a program without touching other settings"), key=dotted(path)
        )
    return after


class _Kept(dict[str, str]):
    """Variables that stand for themselves: `${HOME}` is not replaced while texts are compared."""

    def get(self, name: str, default: Any = None) -> str:
        return f"${{{name}}}"


class _Pieces(Editor):
    def put(self, path: KeyPath, value: Any) -> str:
        """The text with another value at a path."""
        node = self.find(path)
        if node is None:
            return self.set(path, value)
        if not _is_block(node) and not isinstance(value, (list, dict)):
            return self.set(path, value)
        if self.json or not self._owner_is_block(path) or (_is_flow(node) and not _stands(value)):
            return self._splice(node.start_mark.index, node.end_mark.index, self._inline(value))
        return self._rewrite(path, node, value)

    def add(self, path: KeyPath, value: Any) -> str:
        """The text with one item more at the end of a list."""
        node = self.find(path)
        if not isinstance(node, SequenceNode):
            if node is not None and not _is_null(node):
                raise EditError(N_("{key} is not a list in the file"), key=dotted(path))
            return self.put(path, [value])
        if not node.value:
            return self.put(path, [value])
        if node.flow_style:
            end = node.value[-1].end_mark.index
            return self._splice(end, end, f", {self._inline(value)}")
        return self._insert_lines(self._last_line(node) + 1, self._items([value], node.start_mark.column))

    def remove(self, path: KeyPath, index: int) -> str:
        """The text without one item of a list."""
        node = self.find(path)
        if not isinstance(node, SequenceNode) or not 0 <= index < len(node.value):
            raise EditError(MISSING, key=dotted((*path, index)))
        item = node.value[index]
        if node.flow_style:
            first, last = item.start_mark.index, item.end_mark.index
            if index + 1 < len(node.value):
                last = node.value[index + 1].start_mark.index
            elif index:
                first = node.value[index - 1].end_mark.index
            return self._splice(first, last, "")
        if len(node.value) == 1:
            return self._rewrite(path, node, [])
        dash = self.text.rindex("-", 0, item.start_mark.index)
        first = self.text.count("\n", 0, dash)
        lines = self.text.splitlines(keepends=True)
        del lines[first : max(first, self._last_line(item)) + 1]
        return "".join(lines)

    def _owner_is_block(self, path: KeyPath) -> bool:
        owner = self.find(path[:-1])
        return isinstance(owner, (MappingNode, SequenceNode)) and not owner.flow_style

    def _rewrite(self, path: KeyPath, node: Node, value: Any) -> str:
        """Write a value anew, lines and all, behind its key or dash."""
        owner = self.find(path[:-1])
        lines = self.text.splitlines(keepends=True)
        body: list[str] = []
        if isinstance(owner, MappingNode):
            key = next(key for key, _ in owner.value if key.value == path[-1])
            first, column = key.start_mark.line, key.start_mark.column
            head = lines[first][: key.end_mark.column] + ":"
            if isinstance(value, dict) and value:
                body = self._block(value, column + 2)
            elif _stands(value):
                body = self._items(value, column + 2)
        else:
            first = node.start_mark.line
            head = lines[first][: node.start_mark.column].rstrip(" ")
        last = max(first, self._last_line(node))
        if not body:
            head += f" {self._inline(value)}"
        ending = self.newline if lines[last].endswith("\n") else ""
        new = [line + self.newline for line in (head, *body)]
        new[-1] = new[-1].removesuffix(self.newline) + ending
        lines[first : last + 1] = new
        return "".join(lines)

    def _insert_lines(self, place: int, new: Sequence[str]) -> str:
        lines = self.text.splitlines(keepends=True)
        if place and not lines[place - 1].endswith("\n"):
            lines[place - 1] += self.newline
        lines[place:place] = [line + self.newline for line in new]
        return "".join(lines)

    def _block(self, value: Mapping[str, Any], column: int) -> list[str]:
        lines = []
        for key, inner in value.items():
            if _stands(inner) and not self.json:
                lines += [f"{' ' * column}{key}:", *self._items(inner, column + 2)]
            else:
                lines += super()._block({key: inner}, column)
        return lines

    def _items(self, values: Sequence[Any], column: int) -> list[str]:
        lines = []
        for value in values:
            dash = f"{' ' * column}- "
            if isinstance(value, dict) and value:
                first, *others = self._block(value, column + 2)
                lines += [dash + first.lstrip(" "), *others]
            else:
                lines.append(dash + self._inline(value))
        return lines


def _is_block(node: Node) -> bool:
    if isinstance(node, ScalarNode):
        return node.style in ("|", ">")
    return isinstance(node, (MappingNode, SequenceNode)) and not node.flow_style


def _is_flow(node: Node) -> bool:
    return isinstance(node, (MappingNode, SequenceNode)) and bool(node.flow_style)


def _is_null(node: Node) -> bool:
    return isinstance(node, ScalarNode) and not node.style and node.value in ("", "~", "null", "Null", "NULL")


def _stands(value: Any) -> bool:
    """Whether a list gets a line per item: texts and mappings do, numbers stay on one."""
    return isinstance(value, (list, tuple)) and any(isinstance(item, (str, dict)) for item in value)
