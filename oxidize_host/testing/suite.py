"""BackendTests: all checks of the kit in one class to inherit from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oxidize_host.errors import OxidizeError
from oxidize_host.testing.checks.copies import Copies
from oxidize_host.testing.checks.elementwise import Elementwise
from oxidize_host.testing.checks.launches import Launches
from oxidize_host.testing.checks.lifecycle import Lifecycle
from oxidize_host.testing.checks.memory import Memory
from oxidize_host.testing.checks.products import Products
from oxidize_host.testing.checks.streams import Streams
from oxidize_host.testing.checks.transformer import Transformer

if TYPE_CHECKING:
    import pytest

__all__ = ["BackendTests"]


class BackendTests(Lifecycle, Copies, Launches, Streams, Memory, Elementwise, Transformer, Products):
    """The conformance kit: inherit from it, set ``spec``, run pytest.

    `Checks` documents the attributes that a subclass may set. A subclass may add tests of its own; to replace one of the kit's it
    says why with `override`.

    Raises
    ------
    TypeError
        When a subclass is defined that replaces a check without `override`.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a check that is replaced without a reason."""
        super().__init_subclass__(**options)
        for name, value in vars(cls).items():
            if name.startswith("test") and hasattr(BackendTests, name) and not hasattr(value, "oxidize_override"):
                raise TypeError(
                    f"{cls.__name__}.{name} replaces a check of the conformance kit; if the backend cannot take that one, say why: "
                    f'@oxidize_host.testing.override(reason="..."), or declare expected_failures = {{"{name}": "why"}}'
                )

    def test_expected_failures_are_checks_of_the_kit(self, request: pytest.FixtureRequest) -> None:
        """A misspelt name would expect nothing."""
        if not self.expected_failures:
            return
        mine = [item for item in request.session.items if getattr(item, "cls", None) is type(self)]
        names = {item.name for item in mine} | {name for name in dir(self) if name.startswith("test")}
        # Under pytest -k or with a single check only some parameters are collected: then names alone are compared.
        unknown = [
            name
            for name in self.expected_failures
            if name not in names and (name.partition("[")[0] not in names or len(mine) > len(names))
        ]
        if unknown:
            raise OxidizeError(f"expected_failures of {type(self).__name__} names no check: {', '.join(unknown)}")
