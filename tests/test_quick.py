"""The guard of quick tests, and what it is told about them."""

from __future__ import annotations

from pathlib import Path

import pytest
import quick

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def no_installed_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard needs none of them, and importing them takes seconds."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


STARTS = {
    "subprocess": 'getattr(__import__("sub" + "process"), "run")(["true"])',
    "fork": 'pid = getattr(os, "fo" + "rk")(); pid or os._exit(0); os.waitpid(pid, 0)',
    "multiprocessing": """
    with getattr(__import__("concurrent.futures").futures, "Process" + "PoolExecutor")(1) as pool:
        pool.submit(int).result()
""",
    "network": """
    with __import__("socket").socket() as client:
        client.settimeout(0.01)
        client.connect_ex(("192.0.2.1", 9))  # an address for documentation
""",
}
"""Ways to start a process that no name in the test's code shows, and to leave this machine."""


@pytest.mark.parametrize("way", STARTS)
def test_a_quick_test_that_starts_a_process_fails(way: str, pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(f"import os\n\ndef test_it():\n    {STARTS[way].strip()}\n")
    result = run_on_its_own(pytester, path)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines("*is marked quick, and did in its call: *")


def test_a_quick_test_that_starts_none_passes(pytester: pytest.Pytester) -> None:
    run_on_its_own(pytester, pytester.makepyfile("def test_it(): pass")).assert_outcomes(passed=1)


def test_a_test_whose_helper_names_a_starter_is_not_quick(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile("""
        import subprocess
        import pytest

        class Child:
            def __enter__(self):
                return subprocess.run(["true"])

        @pytest.fixture
        def child():
            return Child().__enter__()

        def test_it(child): pass
    """)
    run_on_its_own(pytester, path, "-m", "quick").assert_outcomes(deselected=1)
    run_on_its_own(pytester, path).assert_outcomes(passed=1)


def run_on_its_own(pytester: pytest.Pytester, path: Path, *options: str) -> pytest.RunResult:
    """Run a file of tests with the plugin, in a process of its own."""
    pytester.makeini("[pytest]\nmarkers = quick")
    pytester.makeconftest(
        f"import sys; sys.path.insert(0, {str(quick.TESTS)!r})\n"
        "import quick, pathlib\n"
        "quick.TESTS = pathlib.Path(__file__).parent\n"
        'pytest_plugins = ["quick"]\n'
    )
    return pytester.runpytest_subprocess(path, *options, timeout=300)


@pytest.mark.parametrize("place", quick.PLACES)
def test_the_places_without_quick_tests_exist(place: str) -> None:
    assert (quick.TESTS / place).exists()
