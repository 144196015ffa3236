"""Reference inference engine for oxidize: reads GGUF models and generates text on any backend.

::

    model = Model.load("smollm2", "cpu")
    for piece in model.generate("The capital of France is", max_tokens=48):
        print(piece, end="", flush=True)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oxidize_llm.chat_template import ChatTemplate
    from oxidize_llm.config import Config
    from oxidize_llm.errors import ContextFull, GGUFError, ModelError, ModelNotFound, TemplateError, UnsupportedModel
    from oxidize_llm.generation import Generation
    from oxidize_llm.gguf_file import GGUFFile
    from oxidize_llm.model import Model
    from oxidize_llm.sampling import Sampler, Sampling
    from oxidize_llm.session import Session
    from oxidize_llm.tokenizer import Tokenizer

__all__ = [
    "ChatTemplate",
    "Config",
    "ContextFull",
    "GGUFError",
    "GGUFFile",
    "Generation",
    "Model",
    "ModelError",
    "ModelNotFound",
    "Sampler",
    "Sampling",
    "Session",
    "TemplateError",
    "Tokenizer",
    "UnsupportedModel",
    "__version__",
]

__version__ = "0.1.0"

_HOME = {
    name: module
    for module, names in {
        "chat_template": "ChatTemplate",
        "config": "Config",
        "errors": "ContextFull GGUFError ModelError ModelNotFound TemplateError UnsupportedModel",
        "generation": "Generation",
        "gguf_file": "GGUFFile",
        "model": "Model",
        "sampling": "Sampler Sampling",
        "session": "Session",
        "tokenizer": "Tokenizer",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> object:
    """Import a public name on first use: the command line reads its help without numpy and tokenizers."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names and what is loaded."""
    return sorted({*globals(), *__all__})
