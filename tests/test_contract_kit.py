"""The conformance kit itself: it passes what conforms, fails what does not, and says which is which."""

from __future__ import annotations

import collections
import os
import re
import subprocess
import sys
import textwrap

import pytest

import oxidize_host
from oxidize_host.testing import (
    BackendTests,
    DeferredBackend,
    MinimalBackend,
    override,
)


class TestDeferred(BackendTests):
    """The kit passes on an asynchronous backend, and the host keeps its promises to it."""

    spec = "deferredkit"
    backend = None

    @pytest.fixture(autouse=True, scope="module")
    @staticmethod
    def _registered():
        TestDeferred.backend = DeferredBackend(memory=2**28)
        oxidize_host.register_backend("deferredkit", TestDeferred.backend)
        yield
        oxidize_host.Device("deferredkit").close()
        oxidize_host.unregister_backend("deferredkit")
        assert TestDeferred.backend.violations == []


def test_a_backend_of_seven_hooks_conforms_and_the_rest_is_unsupported(register, run_kit):
    outcomes = run_kit(register(MinimalBackend))
    kinds = collections.Counter(outcome.kind for outcome in outcomes)
    assert [outcome for outcome in outcomes if outcome.kind == "failed"] == []
    assert kinds["passed"] > 100
    assert kinds["unsupported"] > 200
    assert all(outcome.message for outcome in outcomes if outcome.kind == "unsupported")


# -- what a subclass may do ----------------------------------------------------------------------------------


def test_replacing_a_check_needs_a_reason():
    with pytest.raises(TypeError, match=r"test_argmax.*override"):
        type("TestX", (BackendTests,), {"test_argmax": lambda self: None})
    with pytest.raises(TypeError, match="test_argmax"):
        type("TestX", (BackendTests,), {"test_argmax": None})
    with pytest.raises(ValueError, match="reason"):
        override(reason=" ")

    class TestReplaced(BackendTests):
        @override(reason="the vendor's index is 64 bits wide")
        def test_argmax(self): ...

        def test_of_its_own(self): ...

    assert TestReplaced.test_argmax.oxidize_override


TEST_FILE = """
    import oxidize_host, pytest
    from oxidize_host.testing import BackendTests, FaultyBackend

    oxidize_host.register_backend("mine", FaultyBackend({fault!r}))

    class TestMine(BackendTests):
        spec = "mine"
        expected_failures = {expected!r}
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    """What pytest says of a test file with declared failures: one that fails, one that passes, one that does not exist."""
    folder = tmp_path_factory.mktemp("author")
    expected = {
        "test_build_info_is_a_record_that_names_the_backend": "issue 7",
        "test_no_elements[add]": "never fails",
        "test_of_nothing": "misspelt",
    }
    text = TEST_FILE.format(fault="nonsense:build_info,nonsense:memory_info", expected=expected)
    (folder / "test_mine.py").write_text(textwrap.dedent(text))
    names = "build_info or test_no_elements or expected_failures or memory_figures"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", folder, "-k", names],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    assert done.returncode == 1
    return done.stdout


def test_an_expected_failure_is_counted_apart(output):
    assert re.search(r"XFAIL .*test_build_info_is_a_record.*issue 7", output)


def test_an_expected_failure_that_passes_is_an_error(output):
    assert re.search(r"FAILED .*test_no_elements\[add\]", output)
    assert "[XPASS(strict)] never fails" in output
    assert re.search(r"PASSED .*test_no_elements\[mul\]", output)


def test_an_expected_failure_that_no_check_has_is_an_error(output):
    assert re.search(r"FAILED .*test_expected_failures_are_checks_of_the_kit.*\n?.*", output)
    assert "names no check: test_of_nothing" in output


def test_a_failed_assertion_of_the_kit_shows_its_values(output):
    assert "isinstance(42, MemoryInfo)" in output or "isinstance(42, <class" in output
