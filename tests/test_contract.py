"""The contract: what a plugin must implement, how it may, and what the host then calls."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import oxidize_host as ox
from oxidize_host import hookimpl, registry
from oxidize_host.backend import HOOKS, REQUIRED, Backend
from oxidize_host.hookspecs import BackendSpec
from oxidize_host.testing import DeferredBackend, MinimalBackend


def load(plugin):
    return Backend("mine", plugin, where="backend 'mine' (oxidize-mine 1.0)")


def without(*hooks, base=MinimalBackend):
    """A class like ``base`` in which these hooks carry no mark."""
    return type("Partly", (base,), {hook: lambda self: None for hook in hooks})()


def test_every_hook_is_documented_and_returns_one_result():
    for name, function in inspect.getmembers(BackendSpec, inspect.isfunction):
        assert function.__doc__, name
        assert function.oxidize_spec["firstresult"], name


def test_an_object_without_hooks_is_refused():
    with pytest.raises(ox.InvalidBackend, match=r"oxidize-mine 1\.0.*implements no hook"):
        load(object())


@pytest.mark.parametrize("hook", REQUIRED)
def test_a_missing_required_hook_is_named(hook):
    with pytest.raises(ox.InvalidBackend, match=f"required hook {hook}$"):
        load(without(hook))


def test_several_missing_hooks_are_all_named():
    with pytest.raises(ox.InvalidBackend, match="required hooks alloc, launch"):
        load(without("alloc", "launch"))


def test_a_misspelt_hook_is_named():
    class Misspelt(MinimalBackend):
        @hookimpl
        def memory_inof(self): ...

    with pytest.raises(ox.InvalidBackend, match="memory_inof"):
        load(Misspelt())


def test_an_argument_that_the_contract_does_not_have_is_named():
    class Extra(MinimalBackend):
        @hookimpl
        def alloc(self, nbytes, alignment): ...

    with pytest.raises(ox.InvalidBackend, match="alignment"):
        load(Extra())


def test_arguments_in_another_order_are_refused_with_the_right_one():
    class Swapped(MinimalBackend):
        @hookimpl
        def alloc(self, nbytes, device): ...

    with pytest.raises(ox.InvalidBackend, match=r"alloc\(nbytes, device\).*alloc\(device, nbytes\)"):
        load(Swapped())


@pytest.mark.parametrize("hook", ["record", "wait", "sync_event", "query"])
def test_event_hooks_come_together(hook):
    with pytest.raises(ox.InvalidBackend, match=f"but not {hook}: they come together"):
        load(without(hook, base=DeferredBackend))


def test_events_need_something_to_wait_for():
    with pytest.raises(ox.InvalidBackend, match="record but not sync"):
        load(without("sync", base=DeferredBackend))


def test_an_optional_hook_that_is_absent_is_none():
    backend = load(MinimalBackend())
    assert {hook for hook in HOOKS if getattr(backend, hook) is not None} == set(REQUIRED)
    assert backend.implements("alloc")
    assert not backend.implements("sync")


def test_a_hook_with_all_arguments_is_bound_without_an_adapter():
    class Full(MinimalBackend):
        @hookimpl
        def launch(self, device, kernel, grid, block, args, stream):
            return "launched"

    plugin = Full()
    backend = load(plugin)
    assert backend.launch == plugin.launch
    assert inspect.ismethod(backend.launch)


@pytest.mark.parametrize("taken", [(), ("nbytes",), ("src", "stream"), ("device", "dst", "nbytes"), HOOKS["copy"]], ids=str)
def test_a_hook_may_take_fewer_arguments_and_gets_the_right_ones(taken):
    seen = []
    names = [name for name in HOOKS["copy"] if name in taken]
    namespace = {"seen": seen}
    exec(f"def copy(self, {', '.join(names)}): seen.append(({', '.join(names)}{',' * bool(names)}))", namespace)
    backend = load(type("Taking", (MinimalBackend,), {"copy": hookimpl(namespace["copy"])})())
    backend.copy(*(f"<{name}>" for name in HOOKS["copy"]))
    assert seen == [tuple(f"<{name}>" for name in names)]


def test_backends_do_not_hear_each_others_hooks(register):
    first, second = DeferredBackend(), DeferredBackend()
    a, b = ox.Device(register(first), smoke_test=False), ox.Device(register(second), smoke_test=False)
    held = a.to_device(np.arange(4))
    assert len(a._core.state.memory) == 1
    assert len(b._core.state.memory) == 0
    del held


class Counting:
    def __init__(self):
        self.calls = []

    @hookimpl(wrapper=True)
    def launch(self, grid):
        self.calls.append(grid)
        return (yield)


def test_an_observer_wraps_while_it_is_registered_and_costs_nothing_else(register):
    name = register(DeferredBackend)
    backend = registry.load(name)
    direct = backend.launch
    observer = Counting()
    ox.register_observer(observer)
    try:
        ox.register_observer(observer)
        assert backend.observed
        assert backend.launch != direct
        device = ox.Device(name)  # the smoke test launches once
        assert observer.calls == [(257, 1, 1)]
    finally:
        ox.unregister_observer(observer)
    assert not backend.observed
    assert backend.launch == direct == backend.plugin.launch
    from oxidize_host import ops

    x = device.to_device(np.ones(3, np.float32))
    ops.add(x, x, x)
    assert len(observer.calls) == 1
    ox.unregister_observer(observer)


def test_an_observer_sees_bound_launches_too(register, deferred):
    from oxidize_host import ops

    x = deferred.to_device(np.ones(3, np.float32))
    bound = ops.add.bind(x, x, x)
    observer = Counting()
    ox.register_observer(observer)
    try:
        bound(deferred.default_stream)
    finally:
        ox.unregister_observer(observer)
    assert observer.calls == [(3, 1, 1)]


def test_an_observer_sees_backends_loaded_after_it(register):
    observer = Counting()
    ox.register_observer(observer)
    try:
        ox.Device(register(DeferredBackend))
    finally:
        ox.unregister_observer(observer)
    assert observer.calls


@pytest.mark.parametrize("what", ["not a hook", "not a wrapper"])
def test_an_observer_that_is_none_is_refused(what):
    class NotAHook:
        @hookimpl(wrapper=True)
        def lanch(self):
            return (yield)

    class NotAWrapper:
        @hookimpl
        def launch(self): ...

    with pytest.raises(ox.InvalidBackend):
        ox.register_observer({"not a hook": NotAHook, "not a wrapper": NotAWrapper}[what]())
    assert registry._observers == []
