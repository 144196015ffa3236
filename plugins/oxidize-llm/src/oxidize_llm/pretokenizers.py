"""How a text is cut into words before byte-pair encoding, by the name in ``tokenizer.ggml.pre``.

The patterns are those of the models' own tokenizer files, in the spelling of Oniguruma, which ``tokenizers`` uses. Each one cuts
the pieces that those before it left: what it matches and what lies between are pieces of their own.
"""

from __future__ import annotations

import dataclasses

__all__ = ["PRE_TOKENIZERS", "PreTokenizer"]

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclasses.dataclass(frozen=True, slots=True)
class PreTokenizer:
    """Patterns in order, and what else goes with them.

    Attributes
    ----------
    patterns : tuple[str, ...]
    ignore_merges : bool
        Whether a word that is a token needs no merges to become it.
    add_bos : bool
        Whether a text begins with the BOS token where the file does not say.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_gpt2 = PreTokenizer((_GPT2,))
_digits = PreTokenizer((r"\p{N}", _GPT2))
_llama3 = PreTokenizer(
    (rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}",), ignore_merges=True, add_bos=True
)
_qwen2 = PreTokenizer((rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}",))
_default = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": _default,
    "gpt-2": _gpt2,
    "phi-2": _gpt2,
    "mpt": _gpt2,
    "olmo": _gpt2,
    "smollm": _digits,
    "starcoder": _digits,
    "refact": _digits,
    "command-r": _digits,
    "codeshell": _digits,
    "llama-bpe": _llama3,
    "llama3": _llama3,
    "llama-v3": _llama3,
    "smaug-bpe": dataclasses.replace(_llama3, ignore_merges=False, add_bos=False),
    "dbrx": dataclasses.replace(_llama3, ignore_merges=False, add_bos=False),
    "qwen2": _qwen2,
    "stablelm2": _qwen2,
    "deepseek-r1-qwen": _qwen2,
}
