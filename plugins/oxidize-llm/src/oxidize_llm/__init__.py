"""Reference inference engine for oxidize: reads GGUF models and generates text on any backend."""

__all__ = ["__version__"]

__version__ = "0.1.0"
