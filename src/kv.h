// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "plan.h"

// Strides of a cache view in elements, zeros resolved.
struct clf_kv_layout {
    int64_t planes, layers, groups; // groups: scales a head, 0 without scales
    int64_t layer, plane, page;
    int64_t scales_layer, scales_plane, scales_page;
};

// False where a product does not fit.
bool clf_kv_resolve(const clinfer_kv_cache *kv, struct clf_kv_layout *layout);

// Checks cache, batch and layer of the op's params; sets axes P, S, K, D and adds the views.
clinfer_status clf_kv_validate(struct clf_plan *plan, const void *params);
