"""One loaded backend: its hooks checked against the contract and bound to the fastest safe callable."""

from __future__ import annotations

import inspect
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pluggy

from oxidize_host.errors import InvalidBackend
from oxidize_host.hookspecs import BackendSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["HOOKS", "REQUIRED", "Backend"]

REQUIRED = ("build_info", "devices", "open", "alloc", "copy", "compile", "launch")

HOOKS: dict[str, tuple[str, ...]] = {
    name: tuple(inspect.signature(function).parameters)[1:]
    for name, function in vars(BackendSpec).items()
    if not name.startswith("_")
}
"""Every hook of the contract and the names of its arguments, in order."""

_TOGETHER = (("record", "wait", "sync_event", "query"),)


class Backend:
    """The hooks of one backend as plain attributes: ``backend.launch(device, kernel, grid, block, args, stream)``.

    Arguments are positional, in the order of the contract. A hook that is not implemented is None. Each backend has a
    plugin manager of its own: in a shared one, ``launch`` would reach every backend.

    Attributes
    ----------
    name, distribution, version : str
    observed : bool
        Whether observers wrap the hooks; calls then go through pluggy.
    """

    build_info: Any
    devices: Any
    open: Any
    alloc: Any
    copy: Any
    compile: Any
    launch: Any
    free: Any
    argument: Any
    host_view: Any
    import_host: Any
    alloc_pinned: Any
    memory_info: Any
    find_kernel: Any
    bind: Any
    create_stream: Any
    destroy_stream: Any
    sync: Any
    record: Any
    wait: Any
    sync_event: Any
    query: Any
    elapsed: Any
    close: Any

    def __init__(self, name: str, plugin: object, *, where: str, distribution: str = "", version: str = "") -> None:
        self.name, self.distribution, self.version, self.plugin = name, distribution, version, plugin
        self.observed = False
        self._manager = pluggy.PluginManager("oxidize")
        self._manager.add_hookspecs(BackendSpec)
        try:
            self._manager.register(plugin, name=name)
            self._manager.check_pending()
        except (pluggy.PluginValidationError, ValueError) as error:
            raise InvalidBackend(f"{where}: {error}") from error
        self._own = {hook: self._manager.hook.__dict__[hook].get_hookimpls() for hook in HOOKS}
        self._check(where)
        self._wrapped: list[object] = []
        self._bind()

    def __repr__(self) -> str:
        """Return name and provider."""
        return f"<Backend {self.name!r} from {self.distribution} {self.version}>"

    def implements(self, hook: str) -> bool:
        """Return whether the backend itself provides ``hook``."""
        return bool(self._own[hook])

    @staticmethod
    def check_observer(observer: object) -> None:
        """Raise `InvalidBackend` unless ``observer`` consists of hook wrappers."""
        manager = pluggy.PluginManager("oxidize")
        manager.add_hookspecs(BackendSpec)
        try:
            manager.register(observer)
            manager.check_pending()
        except (pluggy.PluginValidationError, ValueError) as error:
            raise InvalidBackend(f"observer {observer!r}: {error}") from error
        callers = manager.get_hookcallers(observer) or []
        impls = [impl for caller in callers for impl in caller.get_hookimpls()]
        if not impls:
            raise InvalidBackend(f"observer {observer!r} wraps no hook; mark methods with @hookimpl(wrapper=True)")
        for impl in impls:
            if not impl.wrapper:
                raise InvalidBackend(f"observer {observer!r}: {impl.function.__name__!r} must be @hookimpl(wrapper=True)")

    def observe(self, observers: Iterable[object]) -> None:
        """Wrap the hooks in exactly ``observers``, and bind anew."""
        wanted = list(observers)
        for observer in self._wrapped:
            if observer not in wanted:
                self._manager.unregister(observer)
        for observer in wanted:
            if observer not in self._wrapped:
                self._manager.register(observer)
        self._wrapped = wanted
        self._bind()

    def _check(self, where: str) -> None:
        if not any(self._own.values()):
            raise InvalidBackend(f"{where} implements no hook; mark its methods with @oxidize_host.hookimpl")
        if missing := [hook for hook in REQUIRED if not self._own[hook]]:
            raise InvalidBackend(f"{where} does not implement the required hook{'s' * (len(missing) > 1)} {', '.join(missing)}")
        for group in _TOGETHER:
            have = [hook for hook in group if self._own[hook]]
            if have and len(have) < len(group):
                lacking = [hook for hook in group if hook not in have]
                raise InvalidBackend(f"{where} implements {', '.join(have)} but not {', '.join(lacking)}: they come together")
        if self._own["record"] and not self._own["sync"]:
            raise InvalidBackend(f"{where} implements record but not sync: events need something to wait for")
        for hook, impls in self._own.items():
            for impl in impls:
                wanted = list(impl.argnames)
                if wanted != [name for name in HOOKS[hook] if name in wanted]:
                    raise InvalidBackend(
                        f"{where}: {hook}({', '.join(wanted)}) has its arguments in another order than the contract's "
                        f"{hook}({', '.join(HOOKS[hook])})"
                    )

    def _bind(self) -> None:
        self.observed = bool(self._wrapped)
        for hook, impls in self._own.items():
            bound: Callable[..., Any] | None = None
            if impls:
                caller = self._manager.hook.__dict__[hook]
                if len(caller.get_hookimpls()) > 1:
                    bound = _through_pluggy(caller, HOOKS[hook])
                else:
                    bound = _direct(impls[0], HOOKS[hook])
            setattr(self, hook, bound)


def _direct(impl: Any, spec: tuple[str, ...]) -> Callable[..., Any]:
    """Return the implementation itself, or a thin adapter if it takes fewer arguments than the specification."""
    function: Callable[..., Any] = impl.function
    positions = [spec.index(name) for name in impl.argnames]
    if len(positions) == len(spec):
        return function
    if not positions:
        return lambda *_: function()
    if len(positions) == 1:
        only = positions[0]
        return lambda *args: function(args[only])
    pick = itemgetter(*positions)
    return lambda *args: function(*pick(args))


def _through_pluggy(caller: Any, spec: tuple[str, ...]) -> Callable[..., Any]:
    return lambda *args: caller(**dict(zip(spec, args, strict=True)))
