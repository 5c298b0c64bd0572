"""python3 bench/quality/source.py IN.gguf OUT.gguf (needs numpy and gguf): a 16-bit source from a quantised GGUF: dequantised, and, so that its weights do not lie on the grid of the
type they come from, rescaled at random without changing what the model computes: each channel between two
layers is multiplied on one side and divided on the other (norm and what reads it; up and down; v and o)."""
import sys

import gguf
import numpy as np
from gguf import GGUFReader, GGUFWriter, GGMLQuantizationType as T, GGUFValueType as V
src, dst = sys.argv[1:3]
r = GGUFReader(src)
rng = np.random.default_rng(7)
w = {t.name: gguf.dequantize(t.data, t.tensor_type).astype(np.float32).reshape(tuple(int(x) for x in reversed(t.shape))) for t in r.tensors}
arch = bytes(r.fields['general.architecture'].parts[-1]).decode()
n = int(r.fields[f'{arch}.block_count'].parts[-1][0])
heads = int(r.fields[f'{arch}.attention.head_count'].parts[-1][0]); kv = int(r.fields[f'{arch}.attention.head_count_kv'].parts[-1][0])
def f(k): return np.exp2(rng.uniform(-0.4, 0.4, k)).astype(np.float32)
for i in range(n):
    b = f'blk.{i}.'
    s = f(w[b+'attn_norm.weight'].size); w[b+'attn_norm.weight'] *= s
    for m in ('attn_q','attn_k','attn_v'): w[b+m+'.weight'] /= s
    s = f(w[b+'ffn_norm.weight'].size); w[b+'ffn_norm.weight'] *= s
    for m in ('ffn_gate','ffn_up'): w[b+m+'.weight'] /= s
    s = f(w[b+'ffn_up.weight'].shape[0]); w[b+'ffn_up.weight'] *= s[:,None]; w[b+'ffn_down.weight'] /= s
    v = w[b+'attn_v.weight']; d = v.shape[0]//kv; s = f(v.shape[0]); v *= s[:,None]
    if b+'attn_v.bias' in w: w[b+'attn_v.bias'] *= s
    w[b+'attn_output.weight'] /= np.repeat(s.reshape(kv,1,d), heads//kv, axis=1).reshape(-1)
o = GGUFWriter(dst, arch)
for k, fld in r.fields.items():
    if k.startswith('GGUF.') or k in ('general.architecture','general.file_type','general.quantization_version') or k.startswith('quantize.'): continue
    t = fld.types
    val = fld.contents()
    if t[0] == V.ARRAY: o.add_array(k, val)
    else: o.add_key_value(k, val, t[0])
o.add_file_type(1)
for t in r.tensors:
    x = w[t.name]
    if x.ndim > 1: o.add_tensor(t.name, x.astype(np.float16))
    else: o.add_tensor(t.name, x)
o.write_header_to_file(); o.write_kv_data_to_file(); o.write_tensors_to_file(); o.close()
