# SPDX-License-Identifier: Apache-2.0
"""make_tokens.py PSALTER SMOLLM2 >tokens.txt: what an independent implementation makes of texts.

Needs the packages gguf and tokenizers. A line is the vocabulary, the text's UTF-8 in hex, then the tokens.
"""
import random
import sys

from gguf import GGUFReader
from tokenizers import Tokenizer, models, pre_tokenizers

PIECES = ["hello", " world", "don't", "I'LL we'll", "'s", "'re", "  ", "   ", "\n", "\n\n", "\t", " \n ", "123", "4", "٣٤", "½", "Ⅷ",
          "naïve", "日本語", "🙂", "👩‍👩‍👧", "e\u0301", "\u00a0", "\u2003", "\u1680", "\u180e", "\u0085", "\u2028", "\u200b", "\ufeff",
          "\x0b", "...", "!?", "--", "_a_", "foo_bar", "http://x.y/z?q=1", "<|im_start|>", "<|endoftext|>", "العربية", "हिन्दी",
          "한국어", "Жук", "ﬁ", "𝒜", "And it came to pass", "the LORD", " begat", "A", "x", "0", " 0 ", "  7", "x  1", "1  x",
          "\r\n", "'", "''", " 's"]
FIXED = ["", " ", "a", "In the beginning God created the heaven and the earth.", "1 2  33   4444", "tabs\t\tand  blanks   ",
         "don't we'll they've I'm he'd it's 're", "x" * 40, " " * 40 + "x", "ab " * 20]


def tokenizer(path, digits):
    fields = GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    t = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), split]) if digits else split
    return t


psalter, smollm2 = sys.argv[1:]
for name, t in ("psalter", tokenizer(psalter, False)), ("smollm2", tokenizer(smollm2, True)):
    rng = random.Random(1)
    made = ["".join(rng.choice(PIECES) for _ in range(rng.randint(2, 9))) for _ in range(90)]
    for text in FIXED + made:
        ids = t.encode(text, add_special_tokens=False).ids
        print(name, text.encode().hex() or "-", *ids)
