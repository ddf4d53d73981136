"""What the package promises about itself: its public names, its size, and that families stay in their folder."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import plafond
from plafond.families import families

SOURCE = Path(plafond.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
WALL = 420
"""Lines of the longest file that is still one noun or one verb."""


def test_public_names_are_importable() -> None:
    for name in plafond.__all__:
        assert getattr(plafond, name) is not None


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_are_short_and_have_a_docstring(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= WALL
    tree = ast.parse(text)
    assert not tree.body or ast.get_docstring(tree), "the module says what it is"


def test_no_family_is_named_outside_its_folder() -> None:
    names = "|".join(
        {family.name for family in families()} | {arch for family in families() for arch in family.archs}
    )
    branch = re.compile(rf"(family|arch)(\.name)?\s*(==|!=|in)\s*[(\[{{]?\s*[\"']({names})[\"']")
    for path in FILES:
        if path.parent.name == "families":
            continue
        found = branch.search(path.read_text(encoding="utf-8"))
        assert found is None, f"{path}: {found and found[0]}"


def test_nothing_broad_is_caught() -> None:
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ExceptHandler):
                assert node.type is not None, path
                assert not (
                    isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")
                ), path
