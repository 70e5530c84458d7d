"""What MkDocs calls to make the site: see mkdocs.yml."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]

PAGES = ("*.md", "docs/*.md", "examples/**/*.md", "deploy/**/*.md", "benchmarks/*.md")

LINKED = (
    "LICENSE",
    "CITATION.cff",
    "Dockerfile",
    ".env.example",
    "compose*.yaml",
    "docs/figures/*",
    "examples/**/*.py",
    "examples/**/*.ipynb",
    "benchmarks/*.py",
    "deploy/**/*.yaml",
    "deploy/**/*.yml",
    "deploy/**/*.json",
    "deploy/**/*.sbatch",
    "examples/Dockerfile",
    "service/zeus_service/bandit/*.py",
)
"""What pages link to and show, and what is no page."""


def on_files(files: Files, config: Any) -> Files:
    """Take pages from all over the repository, at their own paths, where their links are right."""
    paths = {path for pattern in (*PAGES, *LINKED) for path in ROOT.glob(pattern)}
    return Files(
        [
            File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path))
            for path in sorted(paths)
        ]
        + [file for file in files if file.src_dir != config.docs_dir]  # the theme's, the plugins'
    )


def on_page_content(content: str, **_: Any) -> str:
    """Write formulas as MathML, which browsers show without a script."""
    return re.sub(
        r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>',
        lambda found: convert(
            html.unescape(found[2]), display="block" if found[1] == "div" else "inline"
        ),
        content,
        flags=re.DOTALL,
    )
