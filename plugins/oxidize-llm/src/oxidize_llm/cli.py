"""`oxidize run` and `oxidize chat`."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from oxidize_llm.arguments import add_common_arguments

if TYPE_CHECKING:
    import argparse

    from oxidize_llm.generation import Generation
    from oxidize_llm.model import Model
    from oxidize_llm.session import Session

__all__ = ["CHAT", "RUN"]

RUN_TOKENS = 128
CHAT_TEMPERATURE = 0.7


class Run:
    """The command `oxidize run`."""

    help = "continue a text with a language model"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        add_common_arguments(parser, temperature=0.0)
        parser.add_argument("-p", "--prompt", metavar="TEXT", help="the text to continue; - or none reads it from stdin")
        parser.add_argument(
            "--stop", action="append", default=[], metavar="TEXT", help="stop before this text; may be repeated"
        )
        parser.add_argument("--ignore-eos", action="store_true", help="go on where the model would end the text")
        parser.add_argument("--json", action="store_true", help="print one JSON object instead of the text")
        parser.add_argument("--trace", metavar="FILE", help="write what the device did, for ui.perfetto.dev")
        parser.set_defaults(tokens=RUN_TOKENS)

    def main(self, args: argparse.Namespace) -> int:
        """Run the command; return its exit status."""
        from oxidize_llm.console import run_guarded

        return run_guarded("run", lambda: self._main(args))

    def _main(self, args: argparse.Namespace) -> int:
        from oxidize_host.trace import TraceWriter
        from oxidize_llm.console import load, preparing, sampling_of

        with TraceWriter(args.trace) if args.trace else contextlib.nullcontext():
            prompt = sys.stdin.read() if args.prompt in (None, "-") else args.prompt
            model = load(args)
            with preparing():
                generation = model.generate(
                    prompt,
                    max_tokens=args.tokens,
                    sampling=sampling_of(args),
                    stop=args.stop,
                    ignore_eos=args.ignore_eos,
                    session=None if args.ctx is None else model.session(args.ctx),
                )
            return _report_json(model, generation) if args.json else _stream(model, generation)


def _stream(model: Model, generation: Generation) -> int:
    """Print the text while it is written, then the speed on stderr."""
    from oxidize_llm.console import INTERRUPTED, note, show

    status = 0
    try:
        for piece in generation:
            show(piece)
    except KeyboardInterrupt:
        status = INTERRUPTED
    show("\n")
    note(
        f"{generation.prompt_tokens} prompt tokens at {generation.prompt_tokens_per_s:.1f}/s, "
        f"{len(generation.ids)} new tokens at {generation.decode_tokens_per_s:.1f}/s on {model.device.id}, "
        f"loaded in {model.load_seconds:.1f} s; ended by {'Ctrl-C' if status else generation.stop}"
    )
    return status


def _report_json(model: Model, generation: Generation) -> int:
    """Print the report; after Ctrl-C, of what there is."""
    import json

    from oxidize_llm.console import INTERRUPTED

    status = 0
    try:
        generation.finish()
    except KeyboardInterrupt:
        status = INTERRUPTED
    report: dict[str, Any] = {
        "model": str(model.path),
        "device": model.device.id,
        "prompt_ids": generation.prompt_ids,
        "ids": generation.ids,
        "text": generation.text,
        "stop": "interrupted" if status else generation.stop,
        "prompt_tokens_per_s": generation.prompt_tokens_per_s,
        "decode_tokens_per_s": generation.decode_tokens_per_s,
        "load_s": model.load_seconds,
        "kernels": model.device.kernels_used,
        "selection": model.device.selection.as_dict(),
    }
    print(json.dumps(report))
    return status


class Chat:
    """The command `oxidize chat`."""

    help = "talk with a language model"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        add_common_arguments(parser, temperature=CHAT_TEMPERATURE)
        parser.add_argument("--system", metavar="TEXT", help="the system prompt; default: that of the model's template")

    def main(self, args: argparse.Namespace) -> int:
        """Run the command; return its exit status."""
        from oxidize_llm.console import run_guarded

        return run_guarded("chat", lambda: self._main(args))

    def _main(self, args: argparse.Namespace) -> int:
        from oxidize_llm.chat_template import CHATML, ChatTemplate
        from oxidize_llm.console import load, note, preparing
        from oxidize_llm.errors import ContextFull

        model = load(args)
        template = model.template
        if template is None:
            note("the model has no chat template; using ChatML")
            template = ChatTemplate(CHATML, name="ChatML")
        with preparing():
            session = model.session(args.ctx)
        messages = [{"role": "system", "content": args.system}] if args.system is not None else []
        interactive = sys.stdin.isatty()
        if interactive:
            note("Ctrl-C stops an answer, /clear forgets the conversation, /exit or Ctrl-D ends")
        while (line := _read_line(interactive=interactive)) is not None:
            if line == "/exit":
                break
            if line == "/clear":
                messages = [message for message in messages if message["role"] == "system"]
            elif line:
                asked = [*messages, {"role": "user", "content": line}]
                try:
                    answer = _answer(args, model, template, session, asked)
                except ContextFull as error:
                    if not interactive:
                        raise
                    note(f"{error}; /clear forgets the conversation")
                    continue
                messages = [*asked, {"role": "assistant", "content": answer}]
        return 0


def _read_line(*, interactive: bool) -> str | None:
    """Return the user's next line without spaces around it, None at the end."""
    try:
        return input("> " if interactive else "").strip()
    except EOFError:
        return None


def _answer(args: argparse.Namespace, model: Model, template: Any, session: Session, messages: list[dict[str, str]]) -> str:
    """Print and return the model's answer; Ctrl-C cuts it short."""
    from oxidize_llm.console import note, sampling_of, show

    tokenizer = model.tokenizer
    text = template.render([{**m, "content": tokenizer.guard(m["content"])} for m in messages])
    starts_with_bos = tokenizer.bos is not None and text.startswith(tokenizer.token(tokenizer.bos))
    ids = tokenizer.encode(text, special=True, bos=False if starts_with_bos else None)
    generation = model.generate(ids, max_tokens=args.tokens, sampling=sampling_of(args), session=session)
    try:
        for piece in generation:
            show(piece)
    except KeyboardInterrupt:
        note()
    show("\n")
    if generation.stop == "context":
        note(f"the context of {session.context} tokens is full: /clear forgets the conversation")
    return generation.text


RUN = Run()
CHAT = Chat()
