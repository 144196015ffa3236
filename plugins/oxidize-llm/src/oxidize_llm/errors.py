"""The engine's errors, all of them `oxidize_host.OxidizeError`.

::

    OxidizeError
     └─ ModelError (ValueError)   the model cannot be used; the message names the file and the field
         ├─ GGUFError             the file is damaged, or is no GGUF file
         ├─ UnsupportedModel      the file is sound, but needs something that this engine does not have
         ├─ ModelNotFound (LookupError)  no such file, and no installed package of that name
         ├─ TemplateError         the chat template failed, or went past its limits
         └─ ContextFull           the prompt does not fit into the context
"""

from __future__ import annotations

from oxidize_host import OxidizeError

__all__ = ["ContextFull", "GGUFError", "ModelError", "ModelNotFound", "TemplateError", "UnsupportedModel"]


class ModelError(OxidizeError, ValueError):
    """A model cannot be used; the message names the file, the field and the remedy."""


class GGUFError(ModelError):
    """A file is damaged, or is no GGUF file."""


class UnsupportedModel(ModelError):
    """A sound file asks for something that this engine does not have."""


class ModelNotFound(ModelError, LookupError):
    """There is no such file, and no installed package carries a model of that name."""


class TemplateError(ModelError):
    """A chat template failed, or went past its limits."""


class ContextFull(ModelError):
    """A prompt does not fit into the context."""
