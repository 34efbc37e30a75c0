/* Rotary tables: pair j of position t turns by t theta^(-2j/dims), or less (rope.h). */
#include "models/language/mixers/angles.h"

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/status.h"

/* Up to here rows of a pass come from the table; beyond, where a table would be a waste, each is computed. */
enum { TABLE = 16384 };

typedef struct mhla_angle_table {
    struct mhla_angle_table *older;
    int64_t rows;
    float *cos, *sin; /* [rows, dims/2] */
} table;

static void free_table(table *t) {
    if (t == NULL) return;
    mhla_free(t->cos);
    mhla_free(t->sin);
    free(t);
}

mhla_status mhla_angles_table(mhla_angles *r, int64_t rows, const float **cos, const float **sin, int64_t *have) {
    *cos = *sin = NULL;
    *have = 0;
    if (r->dims == 0) return MHLA_OK;
    if (r->tables == NULL || r->tables->rows < rows) {
        const int64_t doubled = r->tables ? 2 * r->tables->rows : 256, n = rows > doubled ? rows : doubled;
        if (n > INT32_MAX) return mhla_fail(MHLA_ERANGE, "a rotary table of %lld positions", (long long)n);
        const size_t bytes = (size_t)n * (size_t)(r->dims / 2) * sizeof(float);
        table *t = calloc(1, sizeof *t);
        if (t) *t = (table){.older = r->tables, .rows = n, .cos = mhla_alloc(bytes), .sin = mhla_alloc(bytes)};
        mhla_status status = t && t->cos && t->sin ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for a rotary table");
        if (status == MHLA_OK && r->scaling->kind)
            mhla_scaling_rows(t->cos, t->sin, r->scaling, r->theta, r->dims, 0, n);
        else if (status == MHLA_OK)
            status = mhla_rope_table(t->cos, t->sin, 1, (const int[]){(int)n}, (const int[]){r->dims}, r->theta);
        if (status != MHLA_OK) {
            free_table(t);
            return status;
        }
        r->tables = t;
    }
    *cos = r->tables->cos;
    *sin = r->tables->sin;
    *have = r->tables->rows;
    return MHLA_OK;
}

mhla_status mhla_angles_begin(mhla_angles *r, const mhla_pass *pass) {
    const int64_t half = r->dims / 2;
    if (half == 0) return MHLA_OK;
    if (r->cos == NULL) {
        float *memory = mhla_alloc(sizeof *memory * (size_t)half * 2 * MHLA_PASS);
        if (memory == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a rotary table of %d rows", MHLA_PASS);
        r->cos = memory;
        r->sin = memory + half * MHLA_PASS;
    }
    for (int i = 0; i < pass->n; i++) {
        const mhla_segment *g = &pass->segments[i];
        float *c = r->cos + g->row * half, *s = r->sin + g->row * half;
        if (g->at + g->n > TABLE) {
            mhla_scaling_rows(c, s, r->scaling, r->theta, r->dims, g->at, g->n);
            continue;
        }
        const float *cos, *sin;
        int64_t have;
        MHLA_TRY(mhla_angles_table(r, g->at + g->n, &cos, &sin, &have));
        memcpy(c, cos + g->at * half, sizeof *c * (size_t)(g->n * half));
        memcpy(s, sin + g->at * half, sizeof *s * (size_t)(g->n * half));
    }
    return MHLA_OK;
}

void mhla_angles_free(mhla_angles *r) {
    for (table *t = r->tables, *older; t; t = older) {
        older = t->older;
        free_table(t);
    }
    mhla_free(r->cos);
    *r = (mhla_angles){0};
}
