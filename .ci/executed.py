"""Say which backends really execute kernels on this machine, by the conformance kit, and fail if an expected one does not."""

from __future__ import annotations

import json
import subprocess
import sys

EXPECTED = ("numpy", "cpu")
NOT_WRITTEN = ("cuda", "metal", "mlx", "vulkan", "webgpu", "strix")


def main() -> int:
    """Print a row a backend; return the number of expected ones that failed."""
    failed = 0
    rows = []
    for name in EXPECTED:
        done = subprocess.run(["oxidize", "verify", name, "--json"], capture_output=True, text=True, check=False)
        try:
            report = json.loads(done.stdout)
        except ValueError:
            report = {"ok": False, "passed": 0, "failed": "?", "unsupported": "?", "reason": done.stderr.strip()[-400:]}
        good = done.returncode == 0 and report["ok"] and report["passed"] > 0
        failed += not good
        verdict = "EXECUTED" if good else "FAILED"
        counts = ", ".join(f"{report[key]} {key}" for key in ("passed", "failed", "unsupported"))
        rows.append(f"  {name:8} {verdict:12} {counts} {report.get('reason') or ''}")
    rows += [f"  {name:8} not executed: this repository has no oxidize-{name} plugin yet" for name in NOT_WRITTEN]
    print("backends that executed kernels on this machine:", *rows, sep="\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
