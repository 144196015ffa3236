"""Check that a piece of work gives back all device memory that it took."""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oxidize_host.device import Device

__all__ = ["no_leaks"]


@contextlib.contextmanager
def no_leaks(device: Device) -> Iterator[None]:
    """Check that the device holds the same memory after a ``with`` block as before it.

    Variables that are still in scope count: put the work into a function of its own. After an exception nothing is checked,
    because its traceback holds the frames.

    Raises
    ------
    AssertionError
        With the allocations and bytes before and after.
    """
    gc.collect()
    before = (device.live_allocations, device.live_bytes)
    yield
    after = (device.live_allocations, device.live_bytes)
    if after != before:
        device.synchronize()  # what queued work uses is held until it is done
        gc.collect()  # cycles hold buffers until they are collected, which is no leak
        after = (device.live_allocations, device.live_bytes)
    if after != before:
        raise AssertionError(
            f"{device.id} held {before[0]} allocations ({before[1]} bytes) before and {after[0]} ({after[1]} bytes) after"
        )
