"""The documentation as a site: complete, without dead links, and true to the code that it names."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import griffe
import pytest
import yaml
from lightning.pytorch import Callback
from zeus.optimizer.batch_size.client import BatchSizeOptimizer
from zeus.optimizer.batch_size.common import JobSpec
from zeus.optimizer.power_limit import GlobalPowerLimitOptimizer
from zeus_service import create_app
from zeus_service.api.messages import SparseSpec
from zeus_service.api.problems import CODES
from zeus_service.bandit.spec import Hardware
from zeus_service.bandit.stopping import Report
from zeus_service.cli import main as zeus_service_command
from zeus_service.config import Config
from zeus_service.errors import OptimizerError

import zeus_lightning
from zeus_lightning import ZeusBSOCallback, ZeusPowerLimitCallback
from zeus_lightning.cli import main as zeus_lightning_command

ROOT = Path(__file__).parents[2]
README, CALLBACKS, RECURRING, WIRE, MIGRATION, MESSAGES = (
    (ROOT / path).read_text()
    for path in (
        "README.md",
        *(f"docs/{name}.md" for name in ("callbacks", "recurring", "wire")),
        *(f"docs/{name}.md" for name in ("migration", "troubleshooting")),
    )
)


def section(page: str, heading: str) -> str:
    """The text below a heading, up to the next one."""
    return re.split(r"^#+ ", page.partition(f"# {heading}\n")[2], flags=re.MULTILINE)[0]


def column(table: str, number: int) -> list[str]:
    """What stands in backticks in a column of the tables of a text."""
    cells = [line.split(" | ")[number] for line in table.splitlines() if line.startswith("| `")]
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell.strip("| "))]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it: a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", f"--site-dir={folder}"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return folder


def test_every_document_is_a_page_of_the_menu(site: Path) -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    folders = ("docs", "examples", "deploy")
    found = [
        *ROOT.glob("*.md"),
        *(path for each in folders for path in (ROOT / each).rglob("*.md")),
    ]
    assert {path.relative_to(ROOT).as_posix() for path in found} <= set(leaves(nav))


def leaves(nav: Any) -> Iterator[str]:
    for each in nav if isinstance(nav, list) else nav.values():
        if isinstance(each, str):
            yield each
        else:
            yield from leaves(each)


def test_a_reader_fetches_nothing_from_elsewhere(site: Path) -> None:
    outside = re.compile(r"""<(?:script|img|link|iframe)[^>]*(?:src|href)=["']?(?:https?:)?//""")
    for page in site.rglob("*.html"):
        assert not outside.search(page.read_text()), page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\() *[\"']?(?:https?:)?//", sheet.read_text()), sheet


def test_the_theme_is_there(site: Path) -> None:
    page = (site / "index.html").read_text()
    parts = re.findall(r'(?:<link[^>]*|<script[^>]*) (?:href|src)="([^"#]+)"', page)
    assert {Path(each).suffix for each in parts} >= {".css", ".js", ".png"}
    assert [each for each in parts if not (site / each).is_file()] == []


def test_formulas_are_drawn_by_the_browser_itself(site: Path) -> None:
    page = (site / "docs" / "information-directed.html").read_text()
    assert page.count('<math xmlns="http://www.w3.org/1998/Math/MathML"') > 20
    assert "arithmatex" not in page


def test_every_public_name_is_in_the_reference_with_its_members(site: Path) -> None:
    page = (site / "docs" / "reference.html").read_text()
    shown = set(re.findall(r'id="(zeus_lightning[^"]*)"', page))
    package = griffe.load("zeus_lightning", search_paths=[ROOT])
    expected = set()
    for name in set(zeus_lightning.__all__) - {"__version__"}:
        expected.add(f"zeus_lightning.{name}")
        for member in package[name].members:
            if not member.startswith("_") and member not in dir(Callback):  # Lightning's hooks
                expected.add(f"zeus_lightning.{name}.{member}")
    assert expected <= shown


@pytest.mark.parametrize("callback", [ZeusBSOCallback, ZeusPowerLimitCallback])
def test_the_tables_of_arguments_have_all_of_them(callback: type) -> None:
    table = section(CALLBACKS, f"Arguments of `{callback.__name__}`")
    assert sorted(column(table, 0)) == sorted(inspect.signature(callback).parameters)


@pytest.mark.parametrize(
    ("program", "group"),
    [("zeus-lightning", zeus_lightning_command), ("zeus-service", zeus_service_command)],
)
def test_every_command_is_shown_with_its_options(
    site: Path, program: str, group: click.Group
) -> None:
    page = (site / "docs" / "commands.html").read_text()
    shown = set(re.findall(r"[a-z-]+", page))
    for command in commands(group, click.Context(group, info_name=program)):
        assert command.name in shown
        options = {name for each in command.params for name in each.opts if name[:2] == "--"}
        assert options <= shown, command.name


def commands(group: click.Group, context: click.Context) -> Iterator[click.Command]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield command
        if isinstance(command, click.Group):
            yield from commands(command, click.Context(command, parent=context, info_name=name))


def test_every_setting_and_every_field_is_shown(site: Path) -> None:
    settings = (site / "docs" / "settings.html").read_text()
    for name in Config.model_fields:
        assert f"<code>ZEUS_BSO_{name.upper()}</code>" in settings
    fields = (site / "docs" / "http-fields.html").read_text()
    for name in (*SparseSpec.model_fields, *Report.model_fields, *Hardware.__dataclass_fields__):
        assert f"<code>{name}</code>" in fields


def test_every_option_of_recur_is_explained() -> None:
    options = zeus_lightning_command.commands["recur"].params
    names = {name for each in options for name in each.opts if name.startswith("--")}
    explained = {*column(RECURRING, 0), *re.findall(r"\*\*`(--[a-z]+)`", RECURRING)}
    assert names <= {each.split()[0] for each in explained}


def test_every_route_and_every_error_is_on_the_page_of_the_wire() -> None:
    app = create_app(Config(database_url="sqlite:////nowhere/zeus.sqlite3"))
    routes = {
        f"{method} " + re.sub(r"<(?:[^<>]*:)?([a-z_]+)>", r"{\1}", rule.rule)
        for rule in app.url_map.iter_rules()
        if not rule.endpoint.startswith("pages.")
        for method in rule.methods - {"HEAD", "OPTIONS"}
    }
    assert set(column(section(WIRE, "Requests"), 0)) == routes
    codes = set(CODES.values())
    kinds = OptimizerError.__subclasses__()
    codes |= {error.code for kind in kinds for error in (kind, *kind.__subclasses__())}
    rows = [line for line in section(WIRE, "Errors").splitlines() if re.match(r"\| \d", line)]
    assert {
        code for row in rows for code in re.findall(r"`([a-z_]+)`", row.split(" | ")[1])
    } == codes


@pytest.mark.parametrize(
    ("heading", "theirs", "ours"),
    [
        (
            "From `BatchSizeOptimizer` and `JobSpec` to `ZeusBSOCallback`",
            ({*JobSpec.__fields__} | {*inspect.signature(BatchSizeOptimizer).parameters}) - {"job"},
            ZeusBSOCallback,
        ),
        (
            "From `GlobalPowerLimitOptimizer` to `ZeusPowerLimitCallback`",
            {*inspect.signature(GlobalPowerLimitOptimizer).parameters},
            ZeusPowerLimitCallback,
        ),
    ],
)
def test_every_argument_of_zeus_has_its_counterpart(
    heading: str, theirs: set[str], ours: type
) -> None:
    table = section(MIGRATION, heading)
    assert set(column(table, 0)) == theirs
    assert set(column(table, 1)) <= {*inspect.signature(ours).parameters}


def test_every_message_that_is_explained_is_printed_by_some_code() -> None:
    printed = {
        text_of(node)
        for package in ("zeus_lightning", "zeus_service")
        for path in Path(importlib.import_module(package).__path__[0]).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.JoinedStr | ast.Constant)
    }
    explained = column(MESSAGES.partition("## As training starts")[2], 0)
    missing = [each for each in explained if not any(each.strip(". ") in one for one in printed)]
    assert explained
    assert missing == []


def text_of(node: ast.expr) -> str:
    """A text of the source, with `...` for its values."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text_of, node.values))
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "..."
