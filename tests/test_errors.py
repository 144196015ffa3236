"""Errors: a tree, typed fields, messages that say what to do."""

from __future__ import annotations

import pickle

import pytest

import oxidize_host as ox
from oxidize_host import errors


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (ox.BackendUnavailable, RuntimeError),
        (ox.BackendNotFound, LookupError),
        (ox.InvalidBackend, TypeError),
        (ox.CompileError, ValueError),
        (ox.LaunchError, RuntimeError),
        (ox.OutOfMemory, MemoryError),
        (ox.DeviceLost, RuntimeError),
        (ox.UnsupportedOp, NotImplementedError),
        (ox.ShapeError, ValueError),
        (ox.ClosedError, ValueError),
    ],
)
def test_each_error_is_an_oxidize_error_and_the_builtin_one_would_expect(error, builtin):
    assert issubclass(error, ox.OxidizeError)
    assert issubclass(error, builtin)
    assert error.__name__ in errors.__doc__, "the tree in the module's docstring is the documentation"


def test_warnings_are_not_errors():
    assert issubclass(ox.OxidizeWarning, UserWarning)
    assert not issubclass(ox.OxidizeWarning, ox.OxidizeError)


def test_unavailable_says_what_happened_and_what_to_do():
    reason = ox.Unavailable("DriverMissing", "libcuda.so.1 not found", "apt-get install libcuda1")
    error = ox.BackendUnavailable(reason)
    assert error.reason is reason
    assert str(error) == "libcuda.so.1 not found - apt-get install libcuda1"


def test_a_plain_string_is_a_missing_device():
    error = ox.BackendUnavailable("no card in slot 3")
    assert error.reason == ox.Unavailable("NoDevice", "no card in slot 3")
    assert str(error) == "no card in slot 3"


def test_the_reasons_of_all_candidates_are_in_the_message():
    others = (ox.Unavailable("NoDevice", "cuda: none"), ox.Unavailable("DriverTooOld", "vulkan: 1.1", "update"))
    text = str(ox.BackendUnavailable(ox.Unavailable("NoDevice", "no usable device"), others))
    assert text.splitlines() == ["no usable device", "  cuda: none", "  vulkan: 1.1 - update"]


def test_a_compile_error_shows_the_log_in_its_traceback():
    error = ox.CompileError("does not compile", log="line 3: expected ';'")
    assert error.log == "line 3: expected ';'"
    assert error.__notes__ == ["line 3: expected ';'"]
    assert not hasattr(ox.CompileError("x"), "__notes__")


def test_out_of_memory_has_figures():
    error = ox.OutOfMemory("full", device="cuda:0", asked=10, free=3, total=9, own=6, largest=5)
    assert (error.device, error.asked, error.free, error.total, error.own, error.largest) == ("cuda:0", 10, 3, 9, 6, 5)
    plain = ox.OutOfMemory()
    assert (plain.free, plain.total) == (None, None)
    assert str(plain)


@pytest.mark.parametrize(
    "error",
    [
        ox.BackendUnavailable(ox.Unavailable("NoDevice", "none"), (ox.Unavailable("NoDevice", "b"),)),
        ox.BackendNotFound(ox.Unavailable("NotInstalled", "none", "pip install x")),
        ox.CompileError("does not compile", log="words"),
        ox.OutOfMemory("full", device="cuda:0", asked=10, free=3, total=9, own=6, largest=5),
        ox.ShapeError("x must be float32"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_a_process_boundary(error):
    """A worker process hands its exception to its parent by pickle."""
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert {k: v for k, v in vars(back).items() if k != "__notes__"} == {
        k: v for k, v in vars(error).items() if k != "__notes__"
    }
