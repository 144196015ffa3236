"""Kernel entries as machine code: compiled with numba on first use, from the disk afterwards.

An entry is named ``module.factory:argument,argument``: ``factory(*arguments)`` in ``oxidize_cpu.kernels.module``
returns the Python function to compile, ``function(args: int64, lo: int64, hi: int64)``; a factory with a keyword ``isa`` is
told the instruction set. Its machine code is the C
function ``void entry(const int64_t *args, int64_t lo, int64_t hi)``.

Neither numba nor a module that needs it is imported unless something has to be compiled.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib
import inspect
import itertools
import os
import re
import threading
import warnings
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llvmlite import binding as llvm

from oxidize_cpu.kernels import isa as isa_of
from oxidize_host import ArtifactCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Jit", "default"]

_FORMAT = 1  # of what is stored; raise it when the loading of objects changes
_PASSES = 3


class Jit:
    """Compiles and loads entries for one instruction set.

    Parameters
    ----------
    isa
        One of `oxidize_cpu.kernels.isa.ISAS`; default: ``OXIDIZE_CPU_ISA``, else the best that the CPU has.
    cache
        Where objects are kept; default: the cache of this plugin.

    Attributes
    ----------
    isa : str
    compiled, loaded : list of str
        Entries compiled here, and those found on disk.
    """

    def __init__(self, isa: str | None = None, *, cache: ArtifactCache | None = None) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        features = llvm.get_host_cpu_features()
        self.isa = isa_of.choose(features, isa)
        self.cache = cache or ArtifactCache("cpu")
        self.compiled: list[str] = []
        self.loaded: list[str] = []
        self._features = features
        self._cpu, self._feature_string = isa_of.target(self.isa, llvm.get_host_cpu_name(), features)
        self._machine = self._target_machine()
        self._engine = llvm.create_lljit_compiler(self._target_machine())
        self._lock = threading.RLock()
        self._addresses: dict[str, int] = {}
        self._trackers: list[Any] = []
        self._names = itertools.count()

    def address(self, entry: str) -> int:
        """Return the address of the machine code of ``entry``.

        Raises
        ------
        LookupError
            There is no such entry.
        """
        known = self._addresses.get(entry)
        if known is not None:
            return known
        with self._lock:
            if entry not in self._addresses:
                self._addresses[entry] = self._get(entry)
            return self._addresses[entry]

    def key(self, entry: str) -> dict[str, object]:
        """Return what the object of ``entry`` depends on, as the key of the cache."""
        return {
            "entry": entry,
            "format": _FORMAT,
            "isa": self.isa,
            "cpu": self._cpu,
            "features": self._feature_string,
            "triple": llvm.get_process_triple(),
            **_versions(),
        }

    def _get(self, entry: str) -> int:
        key = self.key(entry)
        stored = self.cache.get(key)
        if stored is not None:
            try:
                address = self._load(entry, stored)
            except (RuntimeError, OSError) as error:
                self.cache.problems.append(f"object of {entry} does not load, compiling it again: {error}")
            else:
                self.loaded.append(entry)
                return address
        machine_code = self._compile(entry)
        self.cache.put(key, machine_code)
        self.compiled.append(entry)
        return self._load(entry, machine_code)

    def _load(self, entry: str, machine_code: bytes) -> int:
        library = f"{entry}#{next(self._names)}"  # a name that failed cannot be used again either
        symbol = _symbol(entry)
        builder = llvm.JITLibraryBuilder().add_object_img(machine_code).export_symbol(symbol).add_current_process()
        tracker = builder.link(self._engine, library)
        self._trackers.append(tracker)
        return int(tracker[symbol])

    def _compile(self, entry: str) -> bytes:
        text = lower(entry, build(entry, self.isa))
        module = llvm.parse_assembly(text + isa_of.prelude(self.isa, self._features, text))
        module.verify()
        options = llvm.create_pipeline_tuning_options(speed_level=_PASSES)
        options.loop_vectorization = options.slp_vectorization = False  # the kernels are vectors already
        passes = llvm.create_pass_builder(self._machine, options)
        passes.getModulePassManager().run(module, passes)
        if os.environ.get("OXIDIZE_CPU_DUMP"):
            Path(os.environ["OXIDIZE_CPU_DUMP"], f"{_symbol(entry)}.s").write_text(self._machine.emit_assembly(module))
        return bytes(self._machine.emit_object(module))

    def _target_machine(self) -> Any:
        target = llvm.Target.from_triple(llvm.get_process_triple())
        return target.create_target_machine(
            cpu=self._cpu, features=self._feature_string, opt=3, reloc="pic", codemodel="jitdefault", jit=True
        )


@functools.cache
def default() -> Jit:
    """Return the process's own `Jit`."""
    return Jit()


def build(entry: str, isa: str) -> Callable[[int, int, int], None]:
    """Return the Python function of ``entry``; imports numba.

    Raises
    ------
    LookupError
        There is no such entry.
    """
    with _numba_enabled():
        path, _, arguments = entry.partition(":")
        module_name, _, factory = path.partition(".")
        try:
            module = importlib.import_module(f"{__package__}.kernels.{module_name}")
            make = getattr(module, factory)
        except (ImportError, AttributeError) as error:
            raise LookupError(f"no kernel entry {entry!r}: {error}") from error
        options = {"isa": isa} if "isa" in inspect.signature(make).parameters else {}
        function: Callable[[int, int, int], None] = make(*filter(None, arguments.split(",")), **options)
        return function


def lower(entry: str, function: Callable[[int, int, int], None]) -> str:
    """Return LLVM assembly with ``function`` as the C function of ``entry``; uses numba."""
    with _numba_enabled():
        from numba.core import compiler, types
        from numba.core.registry import cpu_target

        for name in isa_of.NAMES:  # numba links what it compiles, though it never runs here: give it an address
            llvm.add_symbol(f"ox.{name}", _anywhere())
        flags = compiler.Flags()
        flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        flags.error_model = "numpy"
        flags.nrt = False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numba's advice to the authors of ordinary code
            result = compiler.compile_extra(
                cpu_target.typing_context, cpu_target.target_context, function, (types.int64,) * 3, types.void, flags, {}
            )
        text = str(result.library._final_module)
        inner = result.fndesc.llvm_func_name
    # What numba exports becomes internal, so that only the C function is left: numba's own status, exceptions
    # and environment then fold away. The attributes that name the host CPU would beat those of the target.
    text = re.sub(
        r"^@_ZN08NumbaEnv\S* = .*$",
        lambda found: found[0].replace("common local_unnamed_addr", "internal"),
        text,
        flags=re.MULTILINE,
    )
    text = re.sub(r"^declare .* @ox\..*$", "", text, flags=re.MULTILINE)  # isa.prelude defines them
    text = re.sub(r"^define (?!internal|linkonce_odr)", "define internal ", text, flags=re.MULTILINE)
    text = re.sub(r'"(target-cpu|target-features|tune-cpu)"="[^"]*"', "", text)
    return text + _WRAPPER.format(symbol=_symbol(entry), inner=inner)


_WRAPPER = """
define void @{symbol}(i64 %args, i64 %lo, i64 %hi) "prefer-vector-width"="512" {{
  %ret = alloca ptr
  %exc = alloca ptr
  %status = call i32 @{inner}(ptr %ret, ptr %exc, i64 %args, i64 %lo, i64 %hi) alwaysinline
  ret void
}}
"""


def _symbol(entry: str) -> str:
    return "oxidize_" + re.sub(r"\W", "_", entry)


def _anywhere() -> int:
    return ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value or 0


class _numba_enabled:  # noqa: N801
    """Import and use numba as if its debugging switches were unset; they would break compiled helpers."""

    def __enter__(self) -> None:
        from numba import config

        self._was = config.DISABLE_JIT
        config.DISABLE_JIT = 0

    def __exit__(self, *_: object) -> None:
        from numba import config

        config.DISABLE_JIT = self._was


@functools.cache
def _versions() -> dict[str, object]:
    return {
        "sources": _digest_of_sources(),
        "numba": metadata.version("numba"),
        "llvmlite": metadata.version("llvmlite"),
        "llvm": ".".join(str(part) for part in llvm.llvm_version_info),
        "plugin": _plugin_version(),
    }


def _plugin_version() -> str:
    try:
        return metadata.version("oxidize-cpu")
    except metadata.PackageNotFoundError:
        return ""


def _digest_of_sources() -> str:
    digest = hashlib.sha256()
    for path in _sources():
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _sources() -> Iterator[Path]:
    yield Path(__file__)
    yield from sorted(Path(__file__).with_name("kernels").glob("*.py"))
