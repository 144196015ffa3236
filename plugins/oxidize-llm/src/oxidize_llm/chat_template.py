"""Chat templates: a conversation to the text that a model was trained on.

A template comes with the model file, from whoever made it, so it runs in Jinja's immutable sandbox: no attributes beyond the
public ones of plain values, no changes to what it was given. Beyond that it is limited in time, in the size of each string that
it builds, and in the size of its output. Not limited: what many small strings take together, and a single slow regular
operation on values below the size limit, such as a sort.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from oxidize_llm.errors import TemplateError

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Mapping, Sequence

    from jinja2.compiler import Frame
    from jinja2.runtime import Context

    from oxidize_llm.gguf_file import GGUFFile
    from oxidize_llm.tokenizer import Tokenizer

__all__ = ["ChatTemplate"]

LONGEST = 4_000_000
"""Characters of the output, and of every string on the way to it."""
SECONDS = 5.0

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


class ChatTemplate:
    """A template, compiled.

    Parameters
    ----------
    source
        The template.
    special
        Names that it may use, such as ``bos_token``.
    name
        What errors call it.

    Raises
    ------
    TemplateError
        It is not valid.
    """

    def __init__(self, source: str, special: Mapping[str, str] | None = None, *, name: str = "the chat template") -> None:
        self.source, self.name = source, name
        self._special = dict(special or {})
        if len(source) > LONGEST:
            raise TemplateError(f"{name} has {len(source)} characters, more than {LONGEST}")
        try:
            self._template = _Sandbox.make().from_string(source)
        except (jinja2.TemplateError, RecursionError, SyntaxError, ValueError, MemoryError, OverflowError) as error:
            raise TemplateError(f"{name} is not valid: {type(error).__name__}: {error}") from error

    @classmethod
    def of(cls, file: GGUFFile, tokenizer: Tokenizer) -> ChatTemplate | None:
        """Return the template of a model file, or None if it has none."""
        if "tokenizer.chat_template" not in file.metadata:
            return None
        names = {"bos_token": tokenizer.bos, "eos_token": tokenizer.eos}
        special = {name: "" if token is None else tokenizer.token(token) for name, token in names.items()}
        return cls(file.get("tokenizer.chat_template", str), special, name=f"{file.path}: tokenizer.chat_template")

    def render(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> str:
        """Return the text of a conversation.

        Parameters
        ----------
        messages
            ``{"role": "system" | "user" | "assistant", "content": text}``, in order.
        add_generation_prompt
            Whether the beginning of an answer follows.

        Raises
        ------
        TemplateError
            The template refused the conversation, failed, tried what the sandbox forbids, or went past its limits.
        """
        values = {**self._special, "messages": [dict(m) for m in messages], "add_generation_prompt": add_generation_prompt}
        pieces, length = [], 0
        try:
            with _Deadline(SECONDS):
                for piece in self._template.generate(values):
                    length += len(piece)
                    if length > LONGEST:
                        raise TemplateError(f"{self.name} writes more than {LONGEST} characters")
                    pieces.append(piece)
        except TemplateError as error:
            raise TemplateError(f"{self.name}: {error}") from error
        except SecurityError as error:
            raise TemplateError(
                f"{self.name} tried something that is not allowed: {error}; do not trust this model file"
            ) from error
        except Exception as error:  # whatever a template can provoke
            raise TemplateError(f"{self.name} failed: {type(error).__name__}: {error}") from error
        return "".join(pieces)


class _Deadline:
    """Raises in the Python code that runs under it when its time is up: a template is compiled to such code."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._end, self._before = seconds, 0.0, sys.gettrace()

    def __enter__(self) -> None:
        """Watch each line from here on."""
        self._end = time.monotonic() + self._seconds
        sys.settrace(self._watch)

    def __exit__(self, *_: object) -> None:
        """Stop watching."""
        sys.settrace(self._before)

    def _watch(self, frame: types.FrameType, event: str, arg: object) -> Callable[..., Any]:
        del frame, event, arg
        if time.monotonic() > self._end:
            raise TemplateError(f"it takes longer than {self._seconds:g} seconds")
        return self._watch


class _Generator(CodeGenerator):
    """Compiles ``~`` to a call that the environment can check."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 - jinja2's name
        self.write("environment.concatenate((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with a limit to the size of what operators, filters and methods make."""

    code_generator_class = _Generator
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    @classmethod
    def make(cls) -> _Sandbox:
        self = cls(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        self.filters["tojson"] = _to_json
        for name in ("center", "format", "indent", "wordwrap", "join", "replace", "xmlattr", "urlize", "batch", "slice"):
            self.filters[name] = _limited(self.filters[name])
        self.globals["raise_exception"] = _refuse
        self.globals["strftime_now"] = _now
        for name in ("lipsum", "cycler", "joiner"):
            self.globals.pop(name, None)
        return self

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse products and powers that would be huge."""
        sizes = [_size(left), _size(right)]
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        if operator == "*" and not numbers and sizes[0] * sizes[1] > LONGEST:
            raise TemplateError(f"a product of more than {LONGEST} elements")
        if operator == "**" and (max(sizes) > 1000 or (isinstance(right, int) and sizes[1] > 64)):
            raise TemplateError("a power that is too large")
        if operator == "%" and isinstance(left, str | bytes):
            _check_format(left)
        return _checked(super().call_binop(context, operator, left, right))

    def concatenate(self, parts: tuple[Any, ...]) -> str:
        """Return the text of ``a ~ b``."""
        texts = [str(_checked(part)) for part in parts]
        if sum(map(len, texts)) > LONGEST:
            raise TemplateError(f"a string of more than {LONGEST} characters")
        return "".join(texts)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return the sandboxed ``str.format``, if its text asks for no huge field."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_format(value.__self__)
        return wrapped

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Refuse methods of strings that would make a huge one."""
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str | bytes) and getattr(obj, "__name__", "") in _GROWING:
            _check_growth(owner, args)
        return _checked(super().call(context, obj, *args, **kwargs))


_GROWING = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "replace", "join", "translate"})


def _size(value: object) -> int:
    """Return the length of a sequence, or the magnitude of a number."""
    if isinstance(value, str | bytes | list | tuple | dict):
        return max(len(value), 1)
    if isinstance(value, int | float):
        return int(min(abs(value), 2**62)) if value == value else 0  # noqa: PLR0124 - NaN
    return 1


def _checked(value: Any) -> Any:
    if isinstance(value, str | bytes | list | tuple) and len(value) > LONGEST:
        raise TemplateError(f"a value of more than {LONGEST} elements")
    if isinstance(value, int) and value.bit_length() > 4096:
        raise TemplateError("a number of more than 4096 bits")
    return value


def _check_growth(text: str | bytes, args: Sequence[object]) -> None:
    """Refuse arguments with which a method or filter could make more of a text than is allowed."""
    longest = 1
    for arg in args:
        parts = arg if isinstance(arg, list | tuple) else [arg]
        longest = max(longest, sum(_size(part) for part in parts))
    if (len(text) + 1) * longest > LONGEST:
        raise TemplateError(f"an operation that could make more than {LONGEST} characters")


_WIDE = re.compile(r"%[^a-zA-Z%]*(\*|\d{7})|\{[^{}]*(\d{7}|:[^{}]*\{)")


def _check_format(text: str | bytes) -> None:
    """Refuse field widths of seven digits (``"%1000000d"``), and widths that are arguments (``"%*d"``, ``"{:{w}}"``)."""
    if _WIDE.search(text if isinstance(text, str) else text.decode("latin-1")):
        raise TemplateError("a format with a huge or a variable width")


def _limited(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that checks what it is given."""

    def limited(*args: Any, **kwargs: Any) -> Any:
        values = [arg for arg in args if not isinstance(arg, jinja2.Environment | jinja2.runtime.Context | nodes.EvalContext)]
        texts = values[0] if isinstance(values[0], list | tuple) else [values[0]]
        total = sum(len(str(_checked(text))) for text in texts)
        others = [*values[1:], *kwargs.values()]
        longest = max((_size(other) for other in others), default=1)
        if (total + len(texts)) * longest > LONGEST:
            raise TemplateError(f"an operation that could make more than {LONGEST} characters")
        if function.__name__ == "do_format":
            _check_format(str(values[0]))
        return _checked(function(*args, **kwargs))

    vars(limited).update(vars(function))  # jinja2's mark on functions that want the environment as well
    return limited


def _to_json(value: object, indent: int | None = None) -> str:
    """Return JSON as templates expect it: not escaped for HTML."""
    if indent is not None and not 0 <= indent <= 16:
        raise TemplateError(f"an indentation of {indent}")
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: object = "") -> NoReturn:
    raise TemplateError(f"it refuses this conversation: {message}")


def _now(form: str) -> str:
    return dt.datetime.now().astimezone().strftime(form[:100])
