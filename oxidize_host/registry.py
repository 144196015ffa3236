"""Find backends, load one, check it, bind its hooks: the only file that knows pluggy and entry points.

Finding reads metadata files and imports nothing; loading a backend imports that one only. Every failure is
kept: the first one is the cause, and what a second attempt would say is often only its echo.
"""

from __future__ import annotations

import importlib
import re
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from oxidize_host.errors import BackendNotFound, BackendUnavailable, InvalidBackend
from oxidize_host.info import Unavailable
from oxidize_host.scan import BackendEntry, scan
from oxidize_host.version import API_VERSION, OLDEST_API_VERSION, __version__

if TYPE_CHECKING:
    from oxidize_host.backend import Backend

__all__ = ["entries", "load", "not_found", "register_backend", "register_observer", "unregister_observer"]

_EXTRAS = ("cpu", "cuda", "metal", "mlx", "strix", "vulkan", "webgpu")

_lock = threading.RLock()
_registered: dict[str, BackendEntry] = {}
_loaded: dict[str, Backend] = {}
_failed: dict[str, BaseException] = {}
_observers: list[object] = []


def entries() -> dict[str, BackendEntry]:
    """Return every installed or registered backend by name, sorted; imports none of them."""
    found = dict(scan())
    found.update(_registered)
    return dict(sorted(found.items()))


def register_backend(name: str, backend: object, *, distribution: str = "", version: str = "") -> None:
    """Make a backend known without an entry point: for tests and for frozen applications, which have no metadata.

    Parameters
    ----------
    name
        What users type; it takes the place of an installed backend of that name.
    backend
        A class with hooks (made on first use), an instance, or a module.
    distribution, version
        Shown in listings and messages.

    Raises
    ------
    ValueError
        The name is not a lower-case identifier.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ValueError(f"backend name {name!r} must be lower-case letters, digits and underscores")
    with _lock:
        _registered[name] = BackendEntry(name, distribution or "(registered)", version, "", None, None, backend)
        _loaded.pop(name, None)
        _failed.pop(name, None)


def unregister_backend(name: str) -> None:
    """Undo `register_backend`; devices already open stay usable."""
    with _lock:
        _registered.pop(name, None)
        _loaded.pop(name, None)
        _failed.pop(name, None)


def register_observer(observer: object) -> None:
    """Let ``observer`` wrap the hooks of every backend, those already loaded included.

    An observer is an object whose methods carry ``@hookimpl(wrapper=True)`` and the names of hooks.
    Without observers a hook call is a plain function call; with one it goes through pluggy.

    Raises
    ------
    InvalidBackend
        A method names no hook, or is not a wrapper.
    """
    from oxidize_host.backend import Backend

    with _lock:
        if observer in _observers:
            return
        Backend.check_observer(observer)
        _observers.append(observer)
        for backend in _loaded.values():
            backend.observe(_observers)


def unregister_observer(observer: object) -> None:
    """Undo `register_observer`; unknown observers are ignored."""
    with _lock:
        if observer in _observers:
            _observers.remove(observer)
        for backend in _loaded.values():
            backend.observe(_observers)


def load(name: str) -> Backend:
    """Import, check and bind the backend called ``name``; once per process.

    Raises
    ------
    BackendNotFound
        Nothing provides the name; the message lists what is installed and what to type.
    BackendUnavailable
        It cannot be imported, or wants another host; `reason` is typed, the cause is chained.
    InvalidBackend
        It breaks the contract.
    """
    backend = _loaded.get(name)
    if backend is not None:
        return backend
    with _lock:
        if name in _loaded:
            return _loaded[name]
        if name in _failed:
            raise _again(_failed[name])
        try:
            backend = _load(name)
        except BackendNotFound:
            raise  # nothing was tried, so a later installation may succeed
        except (BackendUnavailable, InvalidBackend) as error:
            _failed[name] = error
            raise
        backend.observe(_observers)
        _loaded[name] = backend
        return backend


def _again(first: BaseException) -> BaseException:
    """Return an error to raise again: the same words, the same cause, a fresh traceback."""
    if isinstance(first, BackendUnavailable):
        error: BaseException = type(first)(first.reason, first.others)
    else:
        error = type(first)(*first.args)
    error.__cause__ = first.__cause__ or first
    return error


def _load(name: str) -> Backend:
    entry = entries().get(name)
    if entry is None:
        raise not_found(name)
    check_entry(entry)
    plugin = entry.target if entry.target is not None else _import(entry)
    from oxidize_host.backend import Backend

    where = f"backend {entry.name!r} ({entry.label})"
    if isinstance(plugin, type):
        try:
            plugin = plugin()
        except BackendUnavailable:
            raise
        except BaseException as error:
            raise _import_failure(entry, error) from error
    check_api_version(entry, getattr(plugin, "api_version", None))
    return Backend(entry.name, plugin, where=where, distribution=entry.distribution, version=entry.version)


def check_entry(entry: BackendEntry) -> None:
    """Refuse what metadata alone shows to be unusable, before anything is imported."""
    if entry.problem is not None:
        raise BackendUnavailable(entry.problem)
    check_api_version(entry, entry.api_version)


def check_api_version(entry: BackendEntry, wanted: object) -> None:
    """Refuse a backend written for a contract that this host does not serve."""
    if wanted is None:
        return
    if not isinstance(wanted, int) or isinstance(wanted, bool):
        raise InvalidBackend(f"backend {entry.name!r} ({entry.label}): api_version must be an int, not {wanted!r}")
    if wanted > API_VERSION:
        raise BackendUnavailable(
            Unavailable(
                "HostTooOld",
                f"backend {entry.name!r} ({entry.label}) needs contract version {wanted}; "
                f"oxidize-host {__version__} has {API_VERSION}",
                "pip install -U oxidize-host",
            )
        )
    if wanted < OLDEST_API_VERSION:
        raise BackendUnavailable(
            Unavailable(
                "HostTooNew",
                f"backend {entry.name!r} ({entry.label}) speaks contract version {wanted}; "
                f"oxidize-host {__version__} serves {OLDEST_API_VERSION} to {API_VERSION}",
                f"pip install -U {entry.distribution}",
            )
        )


def _import(entry: BackendEntry) -> object:
    module_name, _, attribute = entry.value.partition(":")
    _refuse_current_directory(entry, module_name.partition(".")[0])
    try:
        found: object = importlib.import_module(module_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit and OSError too: one bad plugin must stay one row
        raise _import_failure(entry, error) from error
    for part in filter(None, attribute.split(".")):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise InvalidBackend(
                f"backend {entry.name!r} ({entry.label}): entry point {entry.value!r} names {part!r}, "
                f"which {module_name} does not have"
            ) from error
    return found


def _refuse_current_directory(entry: BackendEntry, package: str) -> None:
    """Refuse a folder that happens to be called ``oxidize_cuda`` where the user stands: it is not the driver."""
    if package in sys.modules or entry.editable:
        return
    import importlib.util

    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return
    origin = spec.origin if spec else None
    if origin is None:
        return
    here = Path.cwd().resolve()
    parent = Path(origin).resolve().parent
    root = parent.parent if Path(origin).name == "__init__.py" else parent
    if root == here and entry.location is not None and entry.location != here:
        raise BackendUnavailable(
            Unavailable(
                "PluginBug",
                f"backend {entry.name!r}: {package} would be imported from the current directory ({origin}), "
                f"not from {entry.label} in {entry.location}",
                f"leave {here}, or rename the folder",
            )
        )


def _import_failure(entry: BackendEntry, error: BaseException) -> BackendUnavailable | InvalidBackend:
    """Translate what a plugin raised on import into a typed reason."""
    plugin = f"backend {entry.name!r} ({entry.label})"
    said = f"{type(error).__name__}: {error}"
    extra = f'pip install "oxidize-host[{entry.name}]"' if entry.name in _EXTRAS else f"pip install -U {entry.distribution}"
    package = entry.value.partition(":")[0].partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and error.name and error.name.partition(".")[0] == package:
        message = f"stale install of {entry.label}: its entry point names {entry.value!r}, and {error.name!r} is gone"
        return BackendUnavailable(Unavailable("NotInstalled", message, f"pip install --force-reinstall {entry.distribution}"))
    if isinstance(error, ModuleNotFoundError):
        return BackendUnavailable(Unavailable("NotInstalled", f"{plugin} needs the module {error.name!r}", extra))
    library = re.search(r"(\S+?):? cannot open shared object file|Library not loaded: (\S+)", str(error))
    if library or isinstance(error, OSError):
        return BackendUnavailable(Unavailable("DriverMissing", f"{plugin} misses a shared library: {said}", extra))
    if isinstance(error, ImportError):
        return BackendUnavailable(Unavailable("NotInstalled", f"{plugin} cannot be imported: {said}", extra))
    return InvalidBackend(f"{plugin} raised on import: {said}; report it to the authors of {entry.distribution}")


def not_found(name: str) -> BackendNotFound:
    """Return the error for a name that nothing provides: what is installed, and what to type."""
    import difflib

    known = list(entries())
    message = f"no backend {name!r}; installed: {', '.join(known) or 'none'}"
    close = difflib.get_close_matches(name, [*known, *_EXTRAS], n=1)
    if name in _EXTRAS:
        fix = f'pip install "oxidize-host[{name}]"'
    elif close:
        fix = f"did you mean {close[0]!r}?"
    else:
        fix = f"pip install oxidize-{name}, if there is one"
    if getattr(sys, "frozen", False) or not known:
        fix += (
            "; a frozen application or a source tree has no entry points: "
            f"call oxidize_host.register_backend({name!r}, BackendClass)"
        )
    return BackendNotFound(Unavailable("NotInstalled", message, fix))
