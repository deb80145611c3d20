# SPDX-License-Identifier: Apache-2.0
"""Read and write safetensors files with numpy and ml_dtypes (bf16 and fp8 included)."""
import json
import struct

import ml_dtypes
import numpy as np

DTYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16,
    "BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "I64": np.int64, "I32": np.int32, "U32": np.uint32, "U8": np.uint8, "I8": np.int8,
}
NAMES = {np.dtype(v): k for k, v in DTYPES.items()}


def save(path, tensors, metadata):
    """Write `tensors` (name -> array) and string `metadata` to `path`."""
    header, blobs, at = {"__metadata__": {k: str(v) for k, v in metadata.items()}}, [], 0
    for name, a in tensors.items():
        a = np.ascontiguousarray(a)
        header[name] = {"dtype": NAMES[a.dtype], "shape": list(a.shape),
                        "data_offsets": [at, at + a.nbytes]}
        blobs.append(a.tobytes())
        at += a.nbytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head + b"".join(blobs))


def load(path):
    """Return (tensors, metadata) of the file at `path`."""
    raw = open(path, "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    header, data = json.loads(raw[8:8 + n]), raw[8 + n:]
    meta = header.pop("__metadata__", {})
    out = {}
    for name, t in header.items():
        lo, hi = t["data_offsets"]
        out[name] = np.frombuffer(data[lo:hi], DTYPES[t["dtype"]]).reshape(t["shape"]).copy()
    return out, meta
