"""Finding and loading: one backend at a time, every failure typed, named and kept."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import types

import pytest

import oxidize_host as ox
from oxidize_host import registry
from oxidize_host.hookspecs import API_VERSION, OLDEST_API_VERSION
from oxidize_host.testing import MinimalBackend, make_distribution

GOOD = "from oxidize_host.testing import MinimalBackend as Backend\n"


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a distribution for one backend whose module has these lines; forget all afterwards."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    names = []

    def install(name, source, *, api=None, distribution=None, value=None, version="1.0"):
        module = f"oxidize_{name}"
        make_distribution(
            site,
            distribution or f"oxidize-{name}",
            version,
            {"oxidize.backends": {name: value or f"{module}:Backend"}},
            {} if source is None else {module: textwrap.dedent(source)},
            api={name: api} if api is not None else None,
        )
        names.append(name)
        return name

    install.site = site
    yield install
    for name in names:
        ox.unregister_backend(name)
        sys.modules.pop(f"oxidize_{name}", None)


def unavailable(name):
    with pytest.raises(ox.BackendUnavailable) as caught:
        registry.load(name)
    return caught.value


def test_a_healthy_backend_is_loaded_once(install):
    name = install("healthy", GOOD)
    backend = registry.load(name)
    assert registry.load(name) is backend
    assert (backend.name, backend.distribution, backend.version) == ("healthy", "oxidize-healthy", "1.0")
    assert registry.entries()[name].label == "oxidize-healthy 1.0"


def test_importing_the_host_scans_nothing_and_naming_a_backend_loads_only_that(install):
    install("alpha", GOOD)
    install("beta", "raise SystemExit('imported although nobody asked')")
    code = """
        import sys, oxidize_host
        assert not {"importlib_metadata", "numpy", "pluggy"} & set(sys.modules), "importing the host does work"
        assert "oxidize_alpha" not in sys.modules
        oxidize_host.Device("alpha")
        print("oxidize_alpha" in sys.modules, "oxidize_beta" in sys.modules, "oxidize_cpu" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(install.site), "PATH": ""},
    )
    assert done.stdout.strip() == "True False False", done.stderr


@pytest.mark.parametrize(
    ("source", "kind", "said"),
    [
        ("import no_such_module_at_all", "NotInstalled", "no_such_module_at_all"),
        ("raise ImportError('numba wants numpy < 2')", "NotInstalled", "numba wants numpy < 2"),
        ("raise OSError('libfoo.so.3: cannot open shared object file: No such file')", "DriverMissing", "libfoo.so.3"),
        ("raise ImportError('libbar.so.1: cannot open shared object file')", "DriverMissing", "libbar.so.1"),
    ],
)
def test_what_is_missing_is_a_typed_reason_with_its_cause(install, source, kind, said):
    name = install("lacking", source)
    error = unavailable(name)
    assert error.reason.kind == kind
    assert said in str(error)
    assert "lacking" in error.reason.message
    assert "oxidize-lacking 1.0" in error.reason.message
    assert error.reason.fix == "pip install -U oxidize-lacking"
    assert isinstance(error.__cause__, ImportError | OSError)


@pytest.mark.parametrize(
    "raised", ["SystemExit(3)", "RuntimeError('boom')", "ZeroDivisionError('x')", "BaseException('odd')", "GeneratorExit()"]
)
def test_whatever_a_plugin_raises_on_import_is_its_bug_and_does_not_reach_the_user_raw(install, raised):
    name = install("crashing", f"raise {raised}")
    with pytest.raises(ox.InvalidBackend, match=r"crashing.*oxidize-crashing 1\.0.*raised on import") as caught:
        registry.load(name)
    assert type(caught.value.__cause__).__name__ == raised.partition("(")[0]


def test_an_interrupt_is_not_swallowed(install):
    name = install("interrupted", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        registry.load(name)


def test_a_crash_in_the_constructor_is_like_one_on_import(install):
    name = install("ctor", "class Backend:\n    def __init__(self):\n        raise RuntimeError('no')")
    with pytest.raises(ox.InvalidBackend, match="ctor"):
        registry.load(name)


def test_a_constructor_may_say_why_not(install):
    source = """
        from oxidize_host import BackendUnavailable, Unavailable
        class Backend:
            def __init__(self):
                raise BackendUnavailable(Unavailable("PermissionDenied", "/dev/kfd", "join the group render"))
    """
    assert unavailable(install("denied", source)).reason.kind == "PermissionDenied"


def test_the_first_failure_is_kept_with_its_cause(install):
    """The second import of a half-imported package often says something else."""
    source = """
        import sys
        sys.oxidize_attempts = getattr(sys, "oxidize_attempts", 0) + 1
        raise OSError("libcuda.so.1: cannot open shared object file") if sys.oxidize_attempts == 1 else ImportError("echo")
    """
    name = install("twice", source)
    first = unavailable(name)
    second = unavailable(name)
    assert sys.oxidize_attempts == 1
    del sys.oxidize_attempts
    assert second is not first
    assert str(second) == str(first)
    assert second.__cause__ is first.__cause__
    with pytest.raises(ox.BackendUnavailable, match=r"libcuda\.so\.1"):
        ox.Device(name)


def test_a_broken_contract_is_remembered_too(install):
    name = install("broken", "class Backend: ...")
    for load in (registry.load, ox.Device):
        with pytest.raises(ox.InvalidBackend, match="no hook"):
            load(name)


def test_a_backend_that_was_not_found_may_be_installed_later(install):
    assert unavailable("latecomer").reason.kind == "NotInstalled"
    install("latecomer", GOOD)
    assert registry.load("latecomer").name == "latecomer"


def test_a_stale_entry_point_is_named_as_such(install):
    error = unavailable(install("stale", None))
    assert "stale install of oxidize-stale 1.0" in str(error)
    assert error.reason.fix == "pip install --force-reinstall oxidize-stale"


def test_a_module_without_the_named_attribute(install):
    with pytest.raises(ox.InvalidBackend, match="'oxidize_renamed:Backend' names 'Backend'"):
        registry.load(install("renamed", "class NewName: ..."))


def test_two_distributions_that_claim_one_name_are_both_named(install):
    install("contested", GOOD)
    install("contested", None, distribution="rival-contested")
    error = unavailable("contested")
    assert error.reason.kind == "Duplicate"
    assert "oxidize-contested" in str(error)
    assert "rival-contested" in str(error)


def test_one_distribution_found_twice_through_a_link_counts_once(install, tmp_path, monkeypatch):
    install("linked", GOOD)
    (tmp_path / "lib64").symlink_to(install.site, target_is_directory=True)
    monkeypatch.syspath_prepend(tmp_path / "lib64")
    assert registry.load("linked").name == "linked"


def test_a_broken_record_is_a_warning_with_its_path_and_hides_nothing(install):
    install("neighbour", GOOD)
    (install.site / "hollow-1.0.dist-info").mkdir()
    with pytest.warns(ox.OxidizeWarning, match=r"hollow-1\.0\.dist-info"):
        backend = registry.load("neighbour")
    assert backend.name == "neighbour"


@pytest.mark.parametrize("where", ["metadata", "class"])
@pytest.mark.parametrize(
    ("version", "kind", "fix"),
    [
        (API_VERSION + 1, "HostTooOld", "pip install -U oxidize-host"),
        (OLDEST_API_VERSION - 1, "HostTooNew", "pip install -U oxidize-versioned"),
    ],
)
def test_a_contract_version_that_is_not_served_names_both(install, where, version, kind, fix):
    imported = "import sys; sys.oxidize_imported = True\n"
    own = f"class Backend(Backend):\n    api_version = {version}\n" if where == "class" else ""
    name = install("versioned", imported + GOOD + own, api=version if where == "metadata" else None)
    error = unavailable(name)
    assert error.reason.kind == kind
    assert error.reason.fix == fix
    assert f"version {version}" in error.reason.message
    assert str(API_VERSION) in error.reason.message
    assert ox.__version__ in error.reason.message
    # What metadata states is refused before anything of the plugin runs.
    assert hasattr(sys, "oxidize_imported") == (where == "class")
    if where == "class":
        del sys.oxidize_imported


@pytest.mark.parametrize("version", ["'1'", "1.0", "True"])
def test_a_contract_version_that_is_no_integer_is_a_broken_contract(install, version):
    name = install("odd", GOOD + f"class Backend(Backend):\n    api_version = {version}\n")
    with pytest.raises(ox.InvalidBackend, match="api_version must be an int"):
        registry.load(name)


def test_a_folder_where_the_user_stands_is_not_the_backend(install, tmp_path, monkeypatch):
    install("shadow", GOOD)
    here = tmp_path / "here"
    (here / "oxidize_shadow").mkdir(parents=True)
    (here / "oxidize_shadow" / "__init__.py").write_text("raise SystemExit('imported from the current directory')")
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend("")  # as `python -c` has it
    error = unavailable("shadow")
    assert "current directory" in str(error)
    assert str(here) in str(error)
    assert "oxidize_shadow" not in sys.modules


def test_an_unknown_name_lists_what_is_installed_and_what_to_type():
    error = unavailable("cupu")
    assert "numpy" in error.reason.message
    assert error.reason.fix == "did you mean 'cpu'?"
    assert unavailable("metal").reason.fix == 'pip install "oxidize-host[metal]"'
    assert unavailable("zzz_none").reason.fix == "pip install oxidize-zzz_none, if there is one"


def test_a_frozen_application_is_told_of_register_backend(monkeypatch):
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert "register_backend('cuda', BackendClass)" in unavailable("cuda").reason.fix


@pytest.mark.parametrize("kind", ["class", "instance", "module"])
def test_a_backend_can_be_registered_by_hand(register, kind):
    target = MinimalBackend
    if kind == "instance":
        target = MinimalBackend()
    elif kind == "module":
        made, target = MinimalBackend(), types.ModuleType("by_hand")
        for hook in registry.load("numpy")._own:
            if hasattr(made, hook):
                setattr(target, hook, getattr(made, hook))
    name = register(target)
    assert ox.Device(name).to_device([1.0]).to_host().tolist() == [1.0]
    assert name in registry.entries()


def test_a_registered_backend_takes_the_place_of_an_installed_one(install, register):
    name = install("replaced", "raise RuntimeError('the installed one')")
    with pytest.raises(ox.InvalidBackend):
        registry.load(name)
    register(MinimalBackend, name)
    assert registry.load(name).distribution == "oxidize-replaced"
    ox.unregister_backend(name)
    with pytest.raises(ox.InvalidBackend):
        registry.load(name)


@pytest.mark.parametrize("name", ["", "Cuda", "my-dev", "1st", "a b", "cuda:0"])
def test_a_name_that_users_could_not_type_is_refused(name):
    with pytest.raises(ValueError, match="lower-case"):
        ox.register_backend(name, MinimalBackend)


def test_several_threads_that_load_one_backend_get_one(install):
    source = "import time; time.sleep(0.05)\n" + GOOD
    name = install("threaded", source)
    found = []
    threads = [threading.Thread(target=lambda: found.append(registry.load(name))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [id(backend) for backend in found] == [id(registry.load(name))] * 8
