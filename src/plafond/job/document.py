"""The text of a job file as plain data, with the line of every key.

YAML is read from the parser's events rather than by a loader: that gives the line of each key, the duplicate
keys, and full say over what an unquoted word means (see `scalars`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)
from ruamel.yaml.reader import ReaderError

from plafond.job.scalars import Scalar, resolve_scalar
from plafond.language.said import N_, Said, SaidError, Value

KeyPath = tuple[str | int, ...]

_TAG = "tag:yaml.org,2002:"
_MERGE = "<<"

# A file with aliases of aliases can ask for more values than there is memory.
MAX_VALUES = 100_000
MAX_DEPTH = 60
TOO_DEEP = N_("nested more than {most} levels deep")
TWICE = N_("written twice, first on line {first}")


class DocumentError(SaidError):
    """The text cannot be read; the sentence is for the user, the file and key are not known here."""

    def __init__(self, text: str | Said, line: int | None = None, path: KeyPath = (), /, **values: Value):
        super().__init__(text, **values)
        self.line, self.path = line, path


@dataclass(frozen=True)
class Document:
    """Plain data and the 1-based line of each key or list item in it."""

    data: Any
    lines: dict[KeyPath, int] = field(default_factory=dict)


@dataclass
class Node:
    """A value with its line: a scalar, a list of nodes, or a list of (key, line of key, node)."""

    line: int
    value: Scalar = None
    items: list[Node] | None = None
    entries: list[tuple[str, int, Node]] | None = None


def read_yaml(text: str) -> Document:
    """Read YAML as AI Toolkit does.

    Raises:
        DocumentError: the text is not one YAML document that a job file can hold.
    """
    yaml = YAML(typ="safe", pure=True)
    yaml.version = (1, 1)
    builder = _Builder(yaml.parse(StringIO(text)))
    try:
        root = builder.build()
    except MarkedYAMLError as error:
        raise _syntax_error(error, builder.long_quote) from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        found = f"{chr(error.character)!a}"
        raise DocumentError(N_("the character {found} is not allowed in YAML"), line, found=found) from None
    except (OverflowError, ValueError):
        # The parser passes the code of an escape such as "\UFFFFFFFF" on to Python without looking at it.
        raise DocumentError(N_("a character code after a backslash is out of range")) from None
    return flatten(root)


def flatten(root: Node | None) -> Document:
    """Turn a tree of nodes into plain data, merging `<<` and refusing keys that are written twice."""
    if root is None:
        return Document(None)
    flattener = _Flattener()
    return Document(flattener.value(root, ()), flattener.lines)


class _Builder:
    """Builds the tree from parser events, without recursion."""

    def __init__(self, events: Iterator[Event]):
        self.events = events
        self.anchors: dict[str, Node] = {}
        self.long_quote: tuple[int, int] | None = None
        """First and last line of the latest quoted text that spans several lines."""

    def build(self) -> Node | None:
        """Return the root of the only document, or None when the text is empty."""
        root: Node | None = None
        documents = 0
        open_nodes: list[Node] = []
        keys: list[tuple[str, int] | None] = []  # the key that waits for its value, one per open node
        for event in self.events:
            if isinstance(event, DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise DocumentError(N_('a second document starts here; remove the "---"'), _line(event))
            elif isinstance(event, (MappingEndEvent, SequenceEndEvent)):
                open_nodes.pop()
                keys.pop()
            elif isinstance(event, (ScalarEvent, AliasEvent, MappingStartEvent, SequenceStartEvent)):
                node = self._node(event)
                if not open_nodes:
                    root = node
                elif (parent := open_nodes[-1]).items is not None:
                    parent.items.append(node)
                elif (key := keys[-1]) is None:
                    keys[-1] = (_key(event, node), node.line)
                else:
                    assert parent.entries is not None
                    parent.entries.append((*key, node))
                    keys[-1] = None
                if isinstance(event, (MappingStartEvent, SequenceStartEvent)):
                    open_nodes.append(node)
                    keys.append(None)
                    if len(open_nodes) > MAX_DEPTH:
                        raise DocumentError(TOO_DEEP, node.line, most=MAX_DEPTH)
            elif isinstance(event, StreamEndEvent):
                break
        return root

    def _node(self, event: ScalarEvent | AliasEvent | MappingStartEvent | SequenceStartEvent) -> Node:
        line = _line(event)
        if isinstance(event, AliasEvent):
            if event.anchor not in self.anchors:
                raise DocumentError(
                    N_("*{name} has no anchor &{name} above it"), line, name=str(event.anchor)
                )
            return self.anchors[event.anchor]
        if isinstance(event, ScalarEvent):
            last = int(event.end_mark.line) + 1
            if event.style in ("'", '"') and last > line:
                self.long_quote = (line, last)
            node = Node(line, _scalar(event, line))
        elif event.tag is not None and str(event.tag) not in (_TAG + "map", _TAG + "seq"):
            raise _bad_tag(str(event.tag), line)
        elif isinstance(event, MappingStartEvent):
            node = Node(line, entries=[])
        else:
            node = Node(line, items=[])
        if event.anchor:
            self.anchors[event.anchor] = node
        return node


class _Flattener:
    """Turns nodes into plain data and notes the line of every path."""

    def __init__(self) -> None:
        self.lines: dict[KeyPath, int] = {}
        self.count = 0

    def value(self, node: Node, path: KeyPath) -> Any:
        self.count += 1
        if self.count > MAX_VALUES:
            raise DocumentError(N_("more than {most} values"), node.line, most=MAX_VALUES)
        if len(path) > MAX_DEPTH:
            raise DocumentError(TOO_DEEP, node.line, most=MAX_DEPTH)
        if node.entries is not None:
            return self._mapping(node.entries, path)
        if node.items is not None:
            result = []
            for index, item in enumerate(node.items):
                self.lines[(*path, index)] = item.line
                result.append(self.value(item, (*path, index)))
            return result
        return node.value

    def _mapping(self, entries: list[tuple[str, int, Node]], path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        first_lines: dict[str, int] = {}
        for key, line, node in entries:
            if key == _MERGE:
                continue
            if key in first_lines:
                raise DocumentError(TWICE, line, (*path, key), first=first_lines[key])
            first_lines[key] = self.lines[(*path, key)] = line
            result[key] = self.value(node, (*path, key))
        for key, line, node in entries:
            if key == _MERGE:
                self._merge(node, line, path, result)
        return result

    def _merge(self, node: Node, line: int, path: KeyPath, result: dict[str, Any]) -> None:
        for source in node.items if node.items is not None else [node]:
            if source.entries is None:
                raise DocumentError(N_("expected a mapping after <<"), line)
            if len(path) > MAX_DEPTH:
                raise DocumentError(TOO_DEEP, line, most=MAX_DEPTH)
            inner = _Flattener()
            inner.count = self.count
            for key, value in inner._mapping(source.entries, path).items():
                if key not in result:
                    result[key] = value
                    owned = {at: n for at, n in inner.lines.items() if at[: len(path) + 1] == (*path, key)}
                    self.lines.update(owned)
            self.count = inner.count


def _line(event: Event) -> int:
    return int(event.start_mark.line) + 1


def _key(event: Event, node: Node) -> str:
    if isinstance(event, ScalarEvent):
        return str(event.value)
    if isinstance(event, AliasEvent) and isinstance(node.value, str):
        return node.value
    raise DocumentError(N_("expected a word as a key, found a list or mapping"), node.line)


def _scalar(event: ScalarEvent, line: int) -> Scalar:
    text = whole_characters(str(event.value), line)
    tag = None if event.tag is None else str(event.tag)
    if tag is None:
        return resolve_scalar(text) if event.style in (None, "") else text
    if tag in ("!", _TAG + "str"):
        return text
    value = resolve_scalar(text)
    kinds: dict[str, type | tuple[type, ...]] = {
        _TAG + "int": int,
        _TAG + "float": (int, float),
        _TAG + "bool": bool,
        _TAG + "null": type(None),
    }
    if tag not in kinds:
        raise _bad_tag(tag, line)
    if not isinstance(value, kinds[tag]):
        raise DocumentError(
            N_('"{text}" does not fit its tag {tag}'), line, text=text, tag=tag.replace(_TAG, "!!")
        )
    return value


def _bad_tag(tag: str, line: int) -> DocumentError:
    tag = tag.replace(_TAG, "!!")
    return DocumentError(N_("the tag {tag} is not supported; remove it"), line, tag=tag)


def whole_characters(text: str, line: int) -> str:
    """Join the two halves in which JSON escapes write some characters."""
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise DocumentError(N_("a text holds half of a character"), line) from None


def _syntax_error(error: MarkedYAMLError, long_quote: tuple[int, int] | None) -> DocumentError:
    """Say in one sentence what the YAML parser found."""
    problem = str(error.problem or error.context or "not valid YAML")
    context = str(error.context or "")
    mark = error.problem_mark or error.context_mark
    line = None if mark is None else int(mark.line) + 1
    begin = line if error.context_mark is None else int(error.context_mark.line) + 1
    if "quoted scalar" in context and ("end of stream" in problem or "document separator" in problem):
        # The parser notices at the end of the file; the quote to blame is where it began.
        return DocumentError(N_("the quote that opens here is never closed"), begin)
    if long_quote is not None and line == long_quote[1]:
        # The text ran on to the next quote, which was meant to open another one.
        return DocumentError(N_("the quote that opens here is not closed on its line"), long_quote[0])
    if "'\\t'" in problem or "tab" in problem:
        return DocumentError(N_("a tab is used for indentation; YAML allows only spaces"), line)
    if "mapping values are not allowed" in problem:
        return DocumentError(N_('a ":" is not allowed here; check the indentation, or quote the text'), line)
    if "expected <block end>" in problem:
        return DocumentError(N_("the indentation does not match the lines above"), line)
    if context.startswith("while parsing a flow") and "expected ','" in problem:
        return DocumentError(N_("the bracket that opens here is not closed, or a comma is missing"), begin)
    if found := re.fullmatch(r"found unknown escape character '(.)'", problem):
        # Mostly a Windows path.
        sentence = N_('"\\{mark}" means nothing in double quotes; use single quotes, or "/" in paths')
        return DocumentError(sentence, line, mark=found[1])
    if found := re.fullmatch(r"found character '(.)' that cannot start any token", problem):
        sentence = N_('an unquoted text cannot begin with "{mark}"; put it in quotes')
        return DocumentError(sentence, line, mark=found[1])
    if "could not find expected ':'" in problem:
        return DocumentError(N_('expected a key followed by ":"'), line)
    return DocumentError(N_("not valid YAML: {problem}"), line, problem=" ".join(problem.split()))
