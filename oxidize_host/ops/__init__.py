"""Tensor operations of a language model, over launch: ``ops.NAME(out, ..., stream=stream)``.

Operands are checked here, once, for all backends; an error names the operand. ``ops.NAME.bind(out, ...)`` returns a launch
that repeats without checks. Activations are float32 and contiguous; weights are `Weight`, in any GGUF format. What changes
from step to step (token ids, positions) is an int32 buffer, so that a bound launch serves every step.

Each operation's docstring names the standard kernel behind it, the extent it is launched over and its arguments: that is
what a backend's ``find_kernel`` and ``launch`` implement. Sizes are u32, other scalars f32. Whatever a kernel reads by an
index from a buffer (rows, positions) may be out of range; the docstring says what it does then.
"""

from oxidize_host.ops.elementwise import add, argmax, gelu, mul, sigmoid, silu, swiglu
from oxidize_host.ops.linear import gemm, gemv, get_rows
from oxidize_host.ops.transformer import attention, rms_norm, rope, set_rows, softmax
from oxidize_host.ops.weight import Weight

__all__ = [
    "Weight",
    "add",
    "argmax",
    "attention",
    "gelu",
    "gemm",
    "gemv",
    "get_rows",
    "mul",
    "rms_norm",
    "rope",
    "set_rows",
    "sigmoid",
    "silu",
    "softmax",
    "swiglu",
]
