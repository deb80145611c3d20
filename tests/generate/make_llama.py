# SPDX-License-Identifier: Apache-2.0
"""make_llama.py: the loss and the last logits that test_plain_model.c wants of its small llama, in numpy and float64."""
import numpy as np

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD, FFN, VOCAB, EPSILON, BASE = 2, 24, 4, 2, 6, 40, 11, 1e-5, 500.0
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
counter = 0


def made(*shape):
    """Tensors in the order of the file: numbers from -1/4 to 1/4, a norm's around 1."""
    global counter
    counter += 1
    n = int(np.prod(shape))
    x = ((np.arange(n) * 7919 + counter * 104729) % 257 - 128) / 512
    return x.reshape(shape) if len(shape) > 1 else 1 + x


def norm(x, g):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON) * g


def rope(x):
    """Pairs of neighbours of [T, heads, HEAD] as complex numbers."""
    turn = np.exp(1j * np.arange(len(x))[:, None, None] * BASE ** (-np.arange(0, HEAD, 2) / HEAD))
    z = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
    return np.stack([z.real, z.imag], -1).reshape(x.shape)


embedding, last = made(VOCAB, WIDTH), made(WIDTH)
x = embedding[TOKENS]
T = len(TOKENS)
for _ in range(LAYERS):
    attn_norm = made(WIDTH)
    q, k, v, o = made(HEADS * HEAD, WIDTH), made(KV_HEADS * HEAD, WIDTH), made(KV_HEADS * HEAD, WIDTH), made(WIDTH, HEADS * HEAD)
    ffn_norm, gate, up, down = made(WIDTH), made(FFN, WIDTH), made(FFN, WIDTH), made(WIDTH, FFN)
    y = norm(x, attn_norm)
    queries, keys = rope((y @ q.T).reshape(T, HEADS, HEAD)), rope((y @ k.T).reshape(T, KV_HEADS, HEAD))
    keys, values = (np.repeat(a, HEADS // KV_HEADS, 1) for a in (keys, (y @ v.T).reshape(T, KV_HEADS, HEAD)))
    s = np.einsum("qhd,khd->hqk", queries, keys) / np.sqrt(HEAD) + np.where(np.tri(T) > 0, 0, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    x = x + np.einsum("hqk,khd->qhd", p / p.sum(-1, keepdims=True), values).reshape(T, -1) @ o.T
    y = norm(x, ffn_norm)
    a = y @ gate.T
    x = x + (a / (1 + np.exp(-a)) * (y @ up.T)) @ down.T
logits = norm(x, last) @ embedding.T
loss = np.log(np.exp(logits).sum(-1)) - logits[np.arange(T), TOKENS[1:] + [0]]
print("loss", repr(float(loss[:-1].mean())))
print("logits", ", ".join(f"{v:.7f}" for v in logits[-1]))
