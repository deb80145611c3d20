// SPDX-License-Identifier: Apache-2.0
// Everything. Including only the headers you use is just as good.
#ifndef CLINFER_CLINFER_H_
#define CLINFER_CLINFER_H_

#include <clinfer/attention_mask.h>
#include <clinfer/context.h>
#include <clinfer/fused_qk_rope.h>
#include <clinfer/kv_pool.h>
#include <clinfer/kv_prefix.h>
#include <clinfer/kv_seq_file.h>
#include <clinfer/kv_store.h>
#include <clinfer/matmul.h>
#include <clinfer/merge_states.h>
#include <clinfer/mla_decode_branch.h>
#include <clinfer/mla_fused_rope_rmsnorm.h>
#include <clinfer/mla_prefill_branch.h>
#include <clinfer/paged_attention.h>
#include <clinfer/rms_norm.h>
#include <clinfer/rms_norm_kv_cache.h>
#include <clinfer/silu_mul.h>

#endif
