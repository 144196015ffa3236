"""The kit's kernels, as source in each dialect that it knows.

Three texts are needed of a dialect, each with its kernels by name:

``saxpy``
    ``saxpy(out f32[], x f32[], y f32[], a f32, n u32)``: ``out[i] = a * x[i] + y[i]`` for ``i < n``, launched with at least n
    work items along the first axis. ``out`` may be ``x`` or ``y``.
``extent``
    ``extent(out u32[], n u32)``: the work item at global position (x, y, z) writes ``x + 1000 * y + 1000000 * z`` to element
    ``(z * ny + y) * nx + x`` if that is below n, where nx = grid[0] * block[0], ny = grid[1] * block[1].
``scalars``
    ``store_T(out T[1], value T)`` for each T of i32, u32, f32, i64, u64, f64 that the dialect has: one work item stores the value.

A dialect is added here. A backend's author may instead give a text as the class attribute ``saxpy_source``, ``extent_source`` or
``scalars_source``, of the test class or of the backend class (which ``oxidize verify`` also sees).
"""

from __future__ import annotations

__all__ = ["KERNELS", "SCALARS", "SOURCES"]

KERNELS = ("saxpy", "extent", "scalars")
SCALARS = ("i32", "u32", "f32", "i64", "u64", "f64")

_PYTHON_SAXPY = """
def saxpy(grid, block, out, x, y, a, n):
    target, left, right = np.frombuffer(out, np.float32), np.frombuffer(x, np.float32), np.frombuffer(y, np.float32)
    target[:n] = a * left[:n] + right[:n]
"""

_PYTHON_EXTENT = """
def extent(grid, block, out, n):
    target = np.frombuffer(out, np.uint32)
    nx, ny, nz = grid[0] * block[0], grid[1] * block[1], grid[2] * block[2]
    for z in range(nz):
        for y in range(ny):
            for x in range(nx):
                i = (z * ny + y) * nx + x
                if i < n:
                    target[i] = x + 1000 * y + 1000000 * z
"""

_PYTHON_TYPES = {"i32": "int32", "u32": "uint32", "f32": "float32", "i64": "int64", "u64": "uint64", "f64": "float64"}

SOURCES: dict[str, dict[str, str]] = {
    "python": {
        "saxpy": _PYTHON_SAXPY,
        "extent": _PYTHON_EXTENT,
        "scalars": "".join(
            f"def store_{name}(grid, block, out, value):\n    np.frombuffer(out, np.{dtype})[0] = value\n\n\n"
            for name, dtype in _PYTHON_TYPES.items()
        ),
    },
}
"""Source text by dialect, then by the name of the text."""
