"""Text to token ids and back, as a GGUF file describes it; the encoding itself is done by ``tokenizers``."""

from __future__ import annotations

import codecs
import functools
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from oxidize_llm.errors import GGUFError, UnsupportedModel
from oxidize_llm.gguf_parse import AGAIN, Array
from oxidize_llm.pretokenizers import PRE_TOKENIZERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tokenizers import Tokenizer as Encoder

    from oxidize_llm.gguf_file import GGUFFile

__all__ = ["Decoder", "Tokenizer"]

_GUARD = "\ufdd0"  # a code point that Unicode reserves for uses like this one

_UNKNOWN, _CONTROL, _USER, _BYTE = 2, 3, 4, 6
_SPACE = "\u2581"
# Tokens that end an answer although no field of the file says so: models are converted with one end token only.
_ENDS = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|end_of_text|>", "<end_of_turn>", "</s>")


class Tokenizer:
    """The tokenizer of a model.

    Attributes
    ----------
    bos, eos : int | None
        The tokens that begin and end a text.
    ends : frozenset[int]
        Every token that ends an answer.
    size : int
        Number of tokens.

    Raises
    ------
    UnsupportedModel
        A kind of tokenizer that this engine does not have.
    GGUFError
        Fields that are missing or contradict each other.
    """

    def __init__(self, file: GGUFFile) -> None:
        self._path = file.path
        self.model = file.get("tokenizer.ggml.model", str)
        if self.model not in ("gpt2", "llama"):
            raise UnsupportedModel(f"{file.path}: the tokenizer {self.model!r} is not supported; supported: gpt2, llama")
        tokens = list(file.get("tokenizer.ggml.tokens", Array).strings())
        self.size = len(tokens)
        kinds = np.ones(self.size, np.int32)
        if "tokenizer.ggml.token_type" in file.metadata:
            kinds = self._numbers(file, "tokenizer.ggml.token_type")
        self._spm = self.model == "llama"
        default_bos = self._spm
        if self._spm:
            self._encoder = _spm(file, tokens, self._numbers(file, "tokenizer.ggml.scores"))
        else:
            self._encoder, default_bos = _bpe(file, tokens)
        self.bos, self.eos = (self._id(file, name) for name in ("bos", "eos"))
        self.add_bos = file.get("tokenizer.ggml.add_bos_token", bool, default_bos) and self.bos is not None
        self._prefix = self._spm and file.get("tokenizer.ggml.add_space_prefix", bool, True)
        self._control = {int(i) for i in np.flatnonzero((kinds == _CONTROL) | (kinds == _UNKNOWN))}
        self._literal = {int(i) for i in np.flatnonzero(kinds == _USER)}
        self._bytes = {int(i) for i in np.flatnonzero(kinds == _BYTE)}
        self._special = {tokens[i]: i for i in self._control | self._literal if tokens[i]}
        named = {self._special[text] for text in _ENDS if self._special.get(text) in self._control}
        self.ends = frozenset(named | {i for i in (self.eos, self._id(file, "eot"), self._id(file, "eom")) if i is not None})
        self._patterns = [_alternatives(tokens, self._literal), _alternatives(tokens, self._control | self._literal)]

    def __repr__(self) -> str:
        """Return kind and size."""
        return f"<Tokenizer {self.model} with {self.size} tokens>"

    def _numbers(self, file: GGUFFile, key: str) -> np.ndarray[Any, Any]:
        numbers = file.get(key, Array).numbers()
        if len(numbers) != self.size:
            raise GGUFError(f"{file.path}: {key} has {len(numbers)} entries for {self.size} tokens; {AGAIN}")
        return numbers

    def _id(self, file: GGUFFile, name: str) -> int | None:
        key = f"tokenizer.ggml.{name}_token_id"
        if key not in file.metadata:
            return None
        number = file.get(key, int)
        if not 0 <= number < self.size:
            raise GGUFError(f"{file.path}: {key} is {number}, but there are {self.size} tokens; {AGAIN}")
        return number

    def encode(self, text: str, *, special: bool = False, bos: bool | None = None) -> list[int]:
        """Return the ids of a text.

        Parameters
        ----------
        text
            Any text; surrogates, which UTF-8 cannot express, become question marks.
        special
            Whether control tokens such as ``<|im_end|>`` are recognized in it: for templates, not for what a user typed.
        bos
            Whether the BOS token comes first; by default as the model wants it.
        """
        text = text.encode("utf-8", "replace").decode()
        ids = [self.bos] if self.bos is not None and (self.add_bos if bos is None else bos) else []
        at_start = True
        for piece, token in self._split(text, special=special):
            if token is not None:
                ids.append(token)
                at_start = True
            elif piece:
                ids += self._encode_plain(piece, prefix=at_start)
                at_start = False
        return ids

    def guard(self, text: str) -> str:
        """Return a text in which `encode` sees no control tokens even with ``special``: for what a user typed into a template."""
        text = text.replace(_GUARD, "")
        pattern = self._patterns[True]
        return text if pattern is None else pattern.sub(lambda match: match[0][0] + _GUARD + match[0][1:], text)

    def _split(self, text: str, *, special: bool) -> Iterator[tuple[str, int | None]]:
        """Cut a text at the tokens that are written out in it."""
        pattern = self._patterns[special]
        if pattern is None:
            yield text, None
            return
        end = 0
        for match in pattern.finditer(text):
            yield text[end : match.start()], None
            yield match[0], self._special[match[0]]
            end = match.end()
        yield text[end:], None

    def _encode_plain(self, text: str, *, prefix: bool) -> list[int]:
        text = text.replace(_GUARD, "")
        if self._spm:
            text = (_SPACE if self._prefix and prefix else "") + text.replace(" ", _SPACE)
        ids: list[int] = self._encoder.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """Return the text of ids; control tokens only with ``special``. Bytes that are not UTF-8 become U+FFFD."""
        text = b"".join(self.token_bytes(token, special=special) for token in ids).decode("utf-8", "replace")
        return text[1:] if self._prefix and text.startswith(" ") else text

    def token(self, token: int) -> str:
        """Return a token as the file spells it."""
        text = self._encoder.id_to_token(token)
        if text is None:
            raise ValueError(f"there is no token {token}; the tokenizer has {self.size}")
        return text.partition("\0")[0] or text  # see _vocabulary

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes that a token stands for, which may be a part of a character."""
        text = self.token(token)
        if token in self._control:
            return text.encode() if special else b""
        if token in self._literal:
            return text.encode()
        if not self._spm:
            table = _byte_of()
            return bytes(table[c] for c in text) if all(c in table for c in text) else text.encode()
        if (token in self._bytes or not self._bytes) and (match := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", text)):
            return bytes([int(match[1], 16)])
        return text.replace(_SPACE, " ").encode()


class Decoder:
    """Decodes ids one by one; the bytes of an incomplete character are held until it is complete."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Return the text that is complete now."""
        return self._utf8.decode(self._tokenizer.token_bytes(token))

    def finish(self) -> str:
        """Return what was held back, as U+FFFD."""
        return self._utf8.decode(b"", final=True)


def _alternatives(tokens: list[str], ids: set[int]) -> re.Pattern[str] | None:
    """Return a pattern of these tokens, the longest first."""
    texts = sorted((tokens[i] for i in ids if tokens[i]), key=lambda text: (-len(text), text))
    return re.compile("|".join(map(re.escape, texts))) if texts else None


@functools.cache
def _byte_of() -> dict[str, int]:
    """Return the byte that each character of a byte-level token stands for (Radford et al. 2019, ``bytes_to_unicode``)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def _vocabulary(file: GGUFFile, tokens: list[str]) -> dict[str, int]:
    vocabulary = {token: i for i, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        # Padding repeats in some files. An id that is not found by its text can still be decoded under a name of its own.
        for i, token in enumerate(tokens):
            if vocabulary[token] != i:
                vocabulary[f"{token}\0{i}"] = i
    if not vocabulary:
        raise GGUFError(f"{file.path}: tokenizer.ggml.tokens is empty; {AGAIN}")
    return vocabulary


def _bpe(file: GGUFFile, tokens: list[str]) -> tuple[Encoder, bool]:
    """Return the encoder of a byte-level BPE tokenizer, and whether texts begin with BOS by default."""
    from tokenizers import Regex, models, pre_tokenizers
    from tokenizers import Tokenizer as Encoder

    name = file.get("tokenizer.ggml.pre", str, "default")
    pre = PRE_TOKENIZERS.get(name)
    if pre is None:
        raise UnsupportedModel(
            f"{file.path}: the pre-tokenizer {name!r} (tokenizer.ggml.pre) is not supported; supported: {', '.join(PRE_TOKENIZERS)}"
        )
    merges = []
    for text in file.get("tokenizer.ggml.merges", Array).strings():
        left, space, right = text.partition(" ")
        if not (left and space and right):
            raise GGUFError(f"{file.path}: tokenizer.ggml.merges has {text!r}, which is not two tokens; {AGAIN}")
        merges.append((left, right))
    try:
        encoder = Encoder(models.BPE(_vocabulary(file, tokens), merges, ignore_merges=pre.ignore_merges))
    except Exception as error:  # tokenizers raises plain Exception
        raise GGUFError(f"{file.path}: tokenizer.ggml.merges does not fit the tokens: {error}; {AGAIN}") from error
    cuts: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns]
    encoder.pre_tokenizer = pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return encoder, pre.add_bos


def _spm(file: GGUFFile, tokens: list[str], scores: np.ndarray[Any, Any]) -> Encoder:
    """Return the encoder of a SentencePiece BPE tokenizer: merges in the order of the scores of what they make."""
    from tokenizers import Tokenizer as Encoder
    from tokenizers import models

    vocabulary = _vocabulary(file, tokens)
    found = []
    for text, i in vocabulary.items():
        if "\0" in text:
            continue
        for cut in range(1, len(text)):
            left, right = vocabulary.get(text[:cut]), vocabulary.get(text[cut:])
            if left is not None and right is not None:
                found.append((-float(scores[i]), left, right, cut, i))
    found.sort()
    merges = [(tokens[i][:cut], tokens[i][cut:]) for _, _, _, cut, i in found]
    unknown = file.get("tokenizer.ggml.unknown_token_id", int, 0)
    name = tokens[unknown] if 0 <= unknown < len(tokens) else None
    try:
        return Encoder(models.BPE(vocabulary, merges, unk_token=name, fuse_unk=True, byte_fallback=True))
    except Exception as error:  # tokenizers raises plain Exception
        raise GGUFError(f"{file.path}: the tokenizer is damaged: {error}; {AGAIN}") from error
