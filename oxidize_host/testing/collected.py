"""What `verify` lets pytest collect: the kit; the specification of the device is set by the plugin in child.py."""

from __future__ import annotations

from oxidize_host.testing import BackendTests


class TestBackend(BackendTests):
    """The conformance kit on the backend that `verify` was given."""
