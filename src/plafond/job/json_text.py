"""JSON job files, with the line of every key; comments and trailing commas are allowed in `.jsonc`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from plafond.job.document import MAX_DEPTH, TOO_DEEP, Document, DocumentError, Node, flatten, whole_characters
from plafond.language.said import N_

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_COMMENT = re.compile(r'("(?:[^"\\\n]|\\.)*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TRAILING_COMMA = re.compile(r'("(?:[^"\\\n]|\\.)*")|,(?=\s*[}\]])')


def read_json(text: str, *, comments: bool = False) -> Document:
    """Read JSON, or JSON with comments.

    Raises:
        DocumentError: the text is not valid JSON, or a key is written twice.
    """
    if comments:
        text = without_comments(text)
    if not text.strip():
        return Document(None)
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise _syntax_error(error, text, comments=comments) from None
    except (RecursionError, ValueError):
        # Other ValueErrors come from numbers with thousands of digits.
        raise DocumentError(N_("a number is too long, or the brackets are nested too deep")) from None
    tokens = [(match.group(), match.start()) for match in _TOKEN.finditer(text)]
    return flatten(_node(_with_lines(tokens, text), 0))


def without_comments(text: str) -> str:
    """Blank out comments, keeping every line where it is."""

    def blank(match: re.Match[str]) -> str:
        return match[1] or re.sub(r"[^\n]", " ", match[0])

    return _TRAILING_COMMA.sub(lambda match: match[1] or " ", _COMMENT.sub(blank, text))


def _syntax_error(error: json.JSONDecodeError, text: str, *, comments: bool) -> DocumentError:
    rest = text[error.pos :].lstrip()
    if not comments and rest.startswith(("//", "/*")):
        return DocumentError(N_("comments are not allowed in .json; name the file .jsonc"), error.lineno)
    if error.msg == "Invalid control character at" or error.msg.startswith("Unterminated string"):
        return DocumentError(N_("the quote that opens on this line is never closed"), error.lineno)
    problem = f"{error.msg[0].lower()}{error.msg[1:]}"
    return DocumentError(N_("not valid JSON: {problem}"), error.lineno, problem=problem)


def _with_lines(tokens: list[tuple[str, int]], text: str) -> Iterator[tuple[str, int]]:
    line, position = 1, 0
    for token, start in tokens:
        line += text.count("\n", position, start)
        position = start
        yield token, line


def _node(tokens: Iterator[tuple[str, int]], depth: int) -> Node:
    return _node_from(*next(tokens), tokens, depth)


def _node_from(token: str, line: int, tokens: Iterator[tuple[str, int]], depth: int) -> Node:
    """Build a node; the text is known to be valid, so the shape needs no checks."""
    if depth > MAX_DEPTH:
        raise DocumentError(TOO_DEEP, line, most=MAX_DEPTH)
    if token == "{":
        node = Node(line, entries=[])
        for key, key_line in tokens:
            if key == "}":
                break
            if key == ",":
                continue
            next(tokens)  # the colon
            assert node.entries is not None
            name = whole_characters(json.loads(key), key_line)
            node.entries.append((name, key_line, _node(tokens, depth + 1)))
        return node
    if token == "[":
        node = Node(line, items=[])
        for item, item_line in tokens:
            if item == "]":
                break
            if item != ",":
                assert node.items is not None
                node.items.append(_node_from(item, item_line, tokens, depth + 1))
        return node
    value = json.loads(token)
    return Node(line, whole_characters(value, line) if isinstance(value, str) else value)
