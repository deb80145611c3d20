// SPDX-License-Identifier: Apache-2.0
#include "opcase.h"

#include <stdlib.h>
#include <string.h>

void op_case_free(struct op_case *c)
{
    for (int i = 0; i < c->num_buffers; i++)
        if (c->buffers[i].data != c->buffers[i].initial)
            free(c->buffers[i].data);
    free(c->params);
    st_free(&c->file);
    memset(c, 0, sizeof *c);
}

void op_case_reset(struct op_case *c)
{
    for (int i = 0; i < c->num_buffers; i++) {
        const struct op_buffer *b = &c->buffers[i];
        if (b->tensor->role == OP_OUT)
            memset(b->data, 0, b->bytes);
        else if (b->data != b->initial)
            memcpy(b->data, b->initial, b->bytes);
    }
}

const struct op_buffer *op_case_buffer(const struct op_case *c, const char *name)
{
    for (int i = 0; i < c->num_buffers; i++)
        if (!strcmp(c->buffers[i].tensor->name, name))
            return &c->buffers[i];
    return NULL;
}

const clinfer_kv_cache *op_case_kv(const struct op_case *c)
{
    return (const void *) ((const char *) c->params + c->op->kv);
}

const clinfer_kv_batch *op_case_batch(const struct op_case *c)
{
    return (const void *) ((const char *) c->params + c->op->batch);
}
