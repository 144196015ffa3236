"""Mutants: each breaks one rule of the contract, and the conformance kit must notice."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest

import oxidize_host
from oxidize_host import hookimpl
from oxidize_host.reference.backend import NumpyBackend
from oxidize_host.testing import (
    DeferredBackend,
    FaultyBackend,
    MinimalBackend,
)


class IgnoresTargetOffset(MinimalBackend):
    @hookimpl
    def copy(self, dst, dst_offset, src, src_offset, nbytes):
        super().copy(dst, 0, src, src_offset, nbytes)


class IgnoresSourceOffset(MinimalBackend):
    @hookimpl
    def copy(self, dst, dst_offset, src, src_offset, nbytes):
        super().copy(dst, dst_offset, src, 0, nbytes)


class CopiesWholeWords(MinimalBackend):
    @hookimpl
    def copy(self, dst, dst_offset, src, src_offset, nbytes):
        super().copy(dst, dst_offset, src, src_offset, nbytes // 4 * 4)


class CopiesForwards(NumpyBackend):
    @hookimpl
    def copy(self, dst, dst_offset, src, src_offset, nbytes):
        target, source = memoryview(dst), memoryview(src)
        for at in range(0, nbytes, 16):
            end = min(at + 16, nbytes)
            target[dst_offset + at : dst_offset + end] = source[src_offset + at : src_offset + end].tobytes()


class SwapsAxes(MinimalBackend):
    @hookimpl
    def launch(self, kernel, grid, block, args):
        kernel(grid[::-1], block[::-1], *args)


class ForgetsBlock(MinimalBackend):
    @hookimpl
    def launch(self, kernel, grid, block, args):
        kernel(grid, (1, 1, 1), *args)


class RoundsScalars(MinimalBackend):
    @hookimpl
    def launch(self, kernel, grid, block, args):
        kernel(grid, block, *(np.float32(arg) if isinstance(arg, np.float64 | np.int64) else arg for arg in args))


class CompilesAnything(MinimalBackend):
    @hookimpl
    def compile(self, source):
        try:
            return super().compile(source)
        except oxidize_host.CompileError:
            return {}


class CompilesWithoutLog(MinimalBackend):
    @hookimpl
    def compile(self, source):
        try:
            return super().compile(source)
        except oxidize_host.CompileError as error:
            raise oxidize_host.CompileError("no") from error


class RaisesAnythingWhenFull(MinimalBackend):
    @hookimpl
    def alloc(self, nbytes):
        if nbytes > 2**40:
            raise RuntimeError("out of memory")
        return super().alloc(nbytes)


class SharesAllMemory(MinimalBackend):
    _memory = bytearray(2**26)

    @hookimpl
    def alloc(self, nbytes):
        return self._memory if nbytes <= 2**26 else super().alloc(nbytes)


class FindsAnything(NumpyBackend):
    @hookimpl
    def find_kernel(self, name, params):
        return super().find_kernel(name, params) or super().find_kernel("add", {})


class IgnoresOffsetOfArguments(NumpyBackend):
    @hookimpl
    def argument(self, handle, offset, nbytes):
        return handle[:nbytes]


class ViewsACopy(NumpyBackend):
    @hookimpl
    def host_view(self, handle):
        return memoryview(handle.copy())


class WrapsACopy(NumpyBackend):
    @hookimpl
    def import_host(self, view):
        return np.array(view)


class BindsTheContents(NumpyBackend):
    @hookimpl
    def bind(self, kernel, grid, block, args):
        taken = [args[0], *(arg.copy() for arg in args[1:])]
        return lambda stream: kernel(grid, block, *taken)


class ShufflesDevices(NumpyBackend):
    _count = itertools.count()

    @hookimpl
    def devices(self):
        return [oxidize_host.DeviceInfo(f"Device {next(self._count)}", dialect="python")]


class IsNotThreadSafe(MinimalBackend):
    def __init__(self):
        super().__init__()
        self._kernel = None
        self._pause = threading.Event()

    @hookimpl
    def launch(self, kernel, grid, block, args):
        self._args = args
        self._pause.wait(1e-4)
        kernel(grid, block, *self._args)


class IgnoresWait(DeferredBackend):
    @hookimpl
    def wait(self):
        pass


class IgnoresSync(DeferredBackend):
    @hookimpl
    def sync(self):
        pass


class IgnoresSyncEvent(DeferredBackend):
    @hookimpl
    def sync_event(self):
        pass


class NeverReaches(DeferredBackend):
    @hookimpl
    def query(self):
        return False


class RunsBackwards(DeferredBackend):
    @hookimpl
    def sync(self, device, stream):
        stream.work.reverse()
        stream.run(stream.queued)
        stream.raise_failure()


class CountsMilliseconds(DeferredBackend):
    @hookimpl
    def elapsed(self, start, end):
        return -1.0


class WrongKernel(NumpyBackend):
    spoilt = ""

    @hookimpl
    def find_kernel(self, name, params):
        kernel = super().find_kernel(name, params)
        if kernel is None or name != self.spoilt:
            return kernel

        def spoil(grid, block, out, *args):
            kernel(grid, block, out, *args)
            self.spoil(out)

        return spoil

    def spoil(self, out):
        values = out.view(np.float32)
        values[-1] = values[-1] * np.float32(1.2) + np.float32(1e-3)


MUTANTS = [
    (IgnoresTargetOffset, "offset"),
    (IgnoresSourceOffset, "offset"),
    (CopiesWholeWords, "bytes_there"),
    (CopiesForwards, "overlapping"),
    (SwapsAxes, "work_item"),
    (ForgetsBlock, "work_item"),
    (RoundsScalars, "scalars"),
    (CompilesAnything, "compile"),
    (CompilesWithoutLog, "compile"),
    (RaisesAnythingWhenFull, "absurd"),
    (SharesAllMemory, "there_and_back or across or random or small"),
    (FindsAnything, "does_not_exist"),
    (IgnoresOffsetOfArguments, "slices"),
    (ViewsACopy, "host_view"),
    (WrapsACopy, "wrapped"),
    (BindsTheContents, "bound"),
    (ShufflesDevices, "devices_are"),
    (IsNotThreadSafe, "threads"),
    (IgnoresWait, "waits_for"),
    (IgnoresSync, "in_order"),
    (IgnoresSyncEvent, "reached_after"),
    (RunsBackwards, "in_order"),
    (CountsMilliseconds, "time_between"),
]


@pytest.mark.parametrize(("mutant", "keyword"), MUTANTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_backend_that_breaks_a_rule_fails(register, kit_failures, mutant, keyword):
    assert kit_failures(register(mutant), keyword)


@pytest.mark.parametrize(
    ("fault", "keyword"),
    [
        ("flip:copy", "there_and_back"),
        ("zero:launch", "saxpy"),
        ("nan:launch", "saxpy"),
        ("leak:free", "given_back"),
        ("full:alloc", "large"),
        ("raise:copy", "bytes_there"),
        ("raise:free", "given_back"),
        ("nonsense:devices", "devices"),
        ("none:compile", "saxpy"),
        ("nonsense:build_info", "build_info"),
        ("raise:close", "opening_and_closing"),
        ("nonsense:memory_info", "memory_figures"),
        ("nonsense:find_kernel", "does_not_exist"),
    ],
)
def test_a_backend_with_an_injected_fault_fails(register, kit_failures, fault, keyword):
    assert kit_failures(register(FaultyBackend(fault)), keyword)


@pytest.mark.parametrize(
    "name",
    ["gemv", "gemm", "get_rows", "rms_norm", "softmax", "rope", "attention", "add", "mul", "silu", "sigmoid", "gelu", "swiglu"],
)
def test_a_wrong_kernel_fails(register, kit_failures, name):
    mutant = type("Wrong", (WrongKernel,), {"spoilt": name})
    keyword = {"silu": "test_functions", "sigmoid": "test_functions", "gelu": "test_functions", "swiglu": "of_two"}.get(
        name, name
    )
    keyword = {"add": "of_two", "mul": "of_two"}.get(name, keyword)
    assert kit_failures(register(mutant), f"{keyword} and not does_not_exist")


@pytest.mark.parametrize("name", ["argmax", "set_rows"])
def test_a_wrong_kernel_with_whole_results_fails(register, kit_failures, name):
    def spoil(self, out):
        out[-2] ^= 1

    mutant = type("Wrong", (WrongKernel,), {"spoilt": name, "spoil": spoil})
    assert kit_failures(register(mutant), name)
