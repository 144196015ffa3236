"""One kernel, launched on the default device: ``python examples/saxpy.py``."""

import numpy as np

import oxidize_host as ox

SOURCE = """
def saxpy(grid, block, out, x, y, a, n):
    out.view(np.float32)[:n] = a * x.view(np.float32)[:n] + y.view(np.float32)[:n]
"""

device = ox.Device()
x, y = np.random.default_rng(0).random((2, 1_000_000), dtype=np.float32)
kernel = device.compile(SOURCE).kernel("saxpy")
with device.create_stream() as stream:
    dx, dy = device.to_device(x, stream=stream), device.to_device(y, stream=stream)
    out = device.empty(x.shape, np.float32)
    config = ox.LaunchConfig(grid=-(-x.size // 256), block=256)
    ox.launch(stream, config, kernel, out, dx, dy, np.float32(2), np.uint32(x.size))

np.testing.assert_allclose(out.to_host(), 2 * x + y, rtol=1e-6)
print(f"saxpy of {x.size:,} elements on {device.id} ({device.info.name}) matches numpy")
