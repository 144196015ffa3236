"""The versions of the host and of the contract; imports nothing, so that listing plugins need not load the contract itself."""

__all__ = ["API_VERSION", "OLDEST_API_VERSION", "__version__"]

__version__ = "0.1.0"

API_VERSION = 1
"""The contract of `oxidize_host.hookspecs`. A backend may state its own as the class attribute ``api_version``."""

OLDEST_API_VERSION = 1
"""The oldest contract that this host still serves."""
