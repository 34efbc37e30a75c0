/* Memory: the replaceable allocator, cache-line aligned blocks, and carving a workspace into pieces. */
#ifndef MHLA_CORE_MEMORY_H
#define MHLA_CORE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

enum { MHLA_ALIGN = 64 };

/* 64-byte aligned, not initialised; NULL without memory or if bytes is 0. Free with mhla_free (NULL is legal). */
void *mhla_alloc(size_t bytes);
void *mhla_alloc_zero(size_t bytes);
void mhla_free(void *memory);

/* Blocks that live and die together, cut one after the other from large ones on huge pages: what is read from memory once
 * per token (weights) spends a quarter of the time on looking up pages otherwise. Aligned as mhla_alloc's. A list begins
 * as NULL. mhla_slab_drop gives the pages of one block back early; its addresses are not used again. */
typedef struct mhla_slab mhla_slab;
void *mhla_slab_alloc(mhla_slab **slab, size_t bytes);
void mhla_slab_drop(void *memory, size_t bytes);
void mhla_slab_free(mhla_slab *slab);

/* A workspace cut from front to back. With base NULL it only counts, so that the function that says how much is
 * needed and the one that uses it are the same. Every piece starts on a cache line. */
typedef struct mhla_carver {
    char *base;
    size_t used;
} mhla_carver;

static inline void *mhla_carve(mhla_carver *c, size_t bytes) {
    void *p = c->base ? c->base + c->used : NULL;
    c->used += (bytes + MHLA_ALIGN - 1) / MHLA_ALIGN * MHLA_ALIGN;
    return p;
}

static inline float *mhla_carve_floats(mhla_carver *c, int64_t count) {
    return mhla_carve(c, (size_t)count * sizeof(float));
}

#endif
