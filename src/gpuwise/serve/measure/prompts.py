"""Prompts of a number of tokens: common words, which tokenizers hold whole, and shared beginnings as a load shares them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from gpuwise.serve.load.requests import NO_PARENT, Requests

_NOUNS = (
    "time year people way day man thing woman life child world school state family student group country problem hand part "
    "place case week company system program question work government number night point home water room mother area money "
    "story fact month lot right study book eye job word business issue side kind head house service friend father power "
    "hour game line end member law car city name president team minute idea body information back parent face others level "
    "office door health person art war history party result change morning reason research girl guy moment air teacher force"
)
WORDS = tuple(_NOUNS.split())
"""Common English nouns, each one token with its blank in the vocabularies of GPT, Llama and Qwen."""


@dataclass(slots=True)
class Prompts:
    """Writes the prompts of ``requests``. ``tokens_per_word`` is measured of the server's tokenizer, ``extra_tokens`` what comes
    on top of a prompt (a first token, a chat's frame). With another ``seed`` no earlier run's cache answers."""

    requests: Requests
    tokens_per_word: float
    seed: int
    extra_tokens: float = 0.0
    _words: dict[int, list[str]] = field(default_factory=dict[int, list[str]])

    def prompt(self, i: int) -> str:
        """The prompt of request ``i``."""
        wanted = self._count(int(self.requests.prompt_tokens[i]))
        text = self.requests.text
        if text is None:
            return " ".join(random.Random(f"{self.seed} own {i}").choices(WORDS, k=wanted))
        return " ".join(self._text(int(text[i]), wanted))

    def _count(self, tokens: int) -> int:
        return max(round((tokens - self.extra_tokens) / self.tokens_per_word), 1)

    def _text(self, t: int, count: int) -> list[str]:
        """The first ``count`` words of text ``t``."""
        words = self._words.get(t, [])
        if len(words) < count:
            texts, shared = self.requests.texts, 0
            first = list[str]()
            if texts is not None and int(texts.parent[t]) != NO_PARENT:
                shared = min(self._count(int(texts.shared_tokens[t])), count)
                first = self._text(int(texts.parent[t]), shared)
            generator = random.Random(f"{self.seed} text {t}")
            words = first + generator.choices(WORDS, k=count)[shared:]
            self._words[t] = words
        return words[:count]
