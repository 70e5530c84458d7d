"""Prints each text that a user may read, to review its English: `python docs/messages.py`.

These are the strings of the source of three words or more, with `...` for values: errors, warnings,
log lines, help of commands, and texts of pages. Docstrings count only if they are help.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = (ROOT / "zeus_lightning", ROOT / "service/zeus_service")


def main() -> None:
    """Print a line for each text: file, line of the file, and the text."""
    readers = {".py": _python_texts, ".html": _template_texts}
    for path in (path for folder in FOLDERS for path in sorted(folder.rglob("*"))):
        if path.suffix in readers:
            for line, text in sorted(readers[path.suffix](path.read_text())):
                if len(text.split()) >= 3:
                    print(f"{path.relative_to(ROOT)}:{line}: {' '.join(text.split())}")


def _python_texts(source: str) -> Iterator[tuple[int, str]]:
    nodes = list(ast.walk(ast.parse(source)))
    hidden: set[ast.AST] = set()
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            hidden |= set(node.values)
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            decorators = " ".join(map(ast.unparse, getattr(node, "decorator_list", [])))
            if not re.search(r"\b(command|group)\b", decorators):
                hidden |= {each.value for each in node.body if isinstance(each, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr | ast.Constant) and node not in hidden:
            yield node.lineno, _text(node)


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "..."


def _template_texts(source: str) -> Iterator[tuple[int, str]]:
    source = re.sub(r"{{.*?}}", "...", source)
    source = re.sub(r"(?s){([#%]).*?\1}", lambda tag: "\n" * tag[0].count("\n"), source)
    for found in re.finditer(r"(?:^|>)([^<>]+)", source):  # between tags
        yield source[: found.start(1)].count("\n") + 1, found[1]


if __name__ == "__main__":
    main()
