"""The conformance kit on the CPU backend."""

from oxidize_host.testing import BackendTests


class TestCpu(BackendTests):
    spec = "cpu"
    saxpy_source = """
def saxpy(grid, block, out, x, y, a, n):
    target, left, right = out.view(np.float32), x.view(np.float32), y.view(np.float32)
    for i in range(n):
        target[i] = a * left[i] + right[i]
"""
