"""`verify`: the kit in a child process, which may crash or hang without harm."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

import oxidize_host
from oxidize_host.testing import Report, make_distribution, verify

# -- verify --------------------------------------------------------------------------------------------------


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install a backend of these lines as a distribution that a child process finds too; returns its name."""

    def install(body, name="kitten"):
        site = tmp_path / "site"
        source = f"from oxidize_host.testing import FaultyBackend\n{textwrap.dedent(body)}"
        make_distribution(site, f"oxidize-{name}", "1.0", {"oxidize.backends": {name: f"oxidize_{name}:Backend"}}, {f"oxidize_{name}": source})  # fmt: skip
        monkeypatch.setenv("PYTHONPATH", str(site))
        return name

    return install


def test_verify_reports_on_an_installed_backend_and_ignores_the_folder_it_runs_in(tmp_path, monkeypatch):
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "conftest.py").write_text("raise SystemExit('the conftest of a user')")
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (folder / "pytest.py").write_text("raise SystemExit('the pytest of a user')")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTEST_ADDOPTS", "--no-such-option")
    before = sorted(folder.rglob("*"))
    seen = []
    report = verify("numpy", progress=lambda name, kind: seen.append((name, kind)))
    assert report.ok, str(report)
    assert report.passed > 400
    assert report.unsupported == len(report.unsupported_checks) > 0
    assert len(seen) == report.passed + report.failed + report.unsupported
    data = report.as_dict()
    assert {"ok", "passed", "failed", "unsupported", "expected_failures", "reason", "failures"} <= set(data)
    assert data["reason"] is None
    assert sorted(folder.rglob("*")) == before


def test_verify_of_a_backend_that_cannot_be_opened_says_why():
    report = verify("no_such_backend")
    assert not report.ok
    assert report.reason.kind == "NotInstalled"
    assert report.passed == report.failed == 0
    assert "not verified" in str(report)


@pytest.mark.parametrize(("fault", "said"), [("exit:open", "SystemExit"), ("oserror:open", "libfaulty")])
def test_verify_of_a_backend_whose_open_raises_says_so(installed, fault, said):
    report = verify(installed(f"class Backend(FaultyBackend):\n    fault = {fault!r}\n"))
    assert not report.ok
    assert said in str(report.reason)


def test_verify_of_a_backend_that_crashes_is_a_failed_report(installed):
    body = """
    from oxidize_host import hookimpl
    class Backend(FaultyBackend):
        @hookimpl
        def find_kernel(self, device, name, params):
            if name == "softmax":
                self.faults["launch"] = "segv"
            return super().find_kernel(device, name, params)
    """
    report = verify(installed(body))
    assert not report.ok
    assert report.failed == 1
    assert report.failures[-1].name.startswith("test_softmax")
    assert "SIGSEGV" in report.failures[-1].message


def test_verify_of_a_backend_that_hangs_ends_at_the_deadline(installed):
    report = verify(installed("class Backend(FaultyBackend):\n    fault = 'hang:open'\n"), deadline=3)
    assert not report.ok
    assert "longer than 3 s" in report.failures[0].message


def test_a_backend_that_prints_does_not_disturb_the_report(installed):
    body = """
    from oxidize_host import hookimpl
    class Backend(FaultyBackend):
        @hookimpl
        def open(self, index):
            import os; os.write(1, b'{"kind": "driver banner"'); print("hello")
            raise RuntimeError("no")
    """
    report = verify(installed(body))
    assert report.reason.kind == "PluginBug"


def test_without_pytest_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(oxidize_host.OxidizeError, match=r'pip install "oxidize-host\[test\]"'):
        verify("numpy")


def test_importing_the_testing_package_does_not_import_pytest():
    code = "import oxidize_host.testing as t, sys; t.FaultyBackend; t.verify; t.oracle; print('pytest' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_report_is_ok_only_if_checks_ran():
    assert not Report("x").ok
    assert Report("x", passed=1).ok
    assert not Report("x", passed=1, failed=1).ok
