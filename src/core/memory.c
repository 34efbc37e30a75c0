/* Aligned blocks over a replaceable malloc: the original pointer is kept just before the aligned one. */
#include "core/memory.h"

#include <mhla/mhla.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void *(*allocate_fn)(size_t) = malloc;
static void (*release_fn)(void *) = free;

void mhla_set_allocator(void *(*allocate)(size_t bytes), void (*release)(void *memory)) {
    allocate_fn = allocate ? allocate : malloc;
    release_fn = release ? release : free;
}

enum { PAGE = 4096, HUGE_PAGE = 2 << 20 };

/* Whole pages of a range. Advice only; failing is fine. */
static void advise(char *memory, size_t bytes, int advice) {
    char *begin = (char *)(((uintptr_t)memory + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
    char *end = (char *)(((uintptr_t)memory + bytes) & ~(uintptr_t)(PAGE - 1));
    if (end > begin) madvise(begin, (size_t)(end - begin), advice);
}

/* Large blocks are walked with strides of many pages: ask for huge ones. */
static void ask_huge(char *memory, size_t bytes) {
#ifdef MADV_HUGEPAGE
    if (bytes >= 2 * HUGE_PAGE) advise(memory, bytes, MADV_HUGEPAGE);
#else
    (void)memory;
    (void)bytes;
#endif
}

static void *align(char *raw, size_t bytes) {
    if (raw == NULL) return NULL;
    const uintptr_t at = ((uintptr_t)raw + sizeof(void *) + MHLA_ALIGN - 1) & ~(uintptr_t)(MHLA_ALIGN - 1);
    ((void **)at)[-1] = raw;
    ask_huge((char *)at, bytes);
    return (void *)at;
}

void *mhla_alloc(size_t bytes) {
    if (bytes == 0 || bytes > SIZE_MAX - 2 * MHLA_ALIGN) return NULL;
    return align(allocate_fn(bytes + MHLA_ALIGN + sizeof(void *)), bytes);
}

void *mhla_alloc_zero(size_t bytes) {
    if (bytes == 0 || bytes > SIZE_MAX - 2 * MHLA_ALIGN) return NULL;
    if (allocate_fn == malloc)
        return align(calloc(1, bytes + MHLA_ALIGN + sizeof(void *)), bytes); /* touches no page */
    void *p = mhla_alloc(bytes);
    if (p) memset(p, 0, bytes);
    return p;
}

void mhla_free(void *memory) {
    if (memory) release_fn(((void **)memory)[-1]);
}

/* ---- Slabs ---- */

enum { SMALLEST = 64 << 10, LARGEST = 32 << 20 };

struct mhla_slab {
    mhla_slab *older;
    char *base;             /* on a huge page's border where it is large */
    size_t used, size, all; /* all: of this one and the older ones */
};

static mhla_slab *new_slab(mhla_slab *older, size_t bytes) {
    size_t size = older ? older->all : SMALLEST;
    if (size > LARGEST) size = LARGEST;
    if (size < bytes) size = bytes;
    if (size > SIZE_MAX / 2) return NULL;
    const size_t border = size >= HUGE_PAGE ? HUGE_PAGE : MHLA_ALIGN;
    char *raw = mhla_alloc(sizeof(mhla_slab) + border + size);
    if (raw == NULL) return NULL;
    mhla_slab *s = (mhla_slab *)raw;
    *s = (mhla_slab){.older = older, .size = size, .all = size + (older ? older->all : 0)};
    s->base = (char *)(((uintptr_t)raw + sizeof *s + border - 1) & ~(uintptr_t)(border - 1));
    return s;
}

void *mhla_slab_alloc(mhla_slab **slab, size_t bytes) {
    if (bytes == 0 || bytes > SIZE_MAX / 4) return NULL;
    bytes = (bytes + MHLA_ALIGN - 1) / MHLA_ALIGN * MHLA_ALIGN;
    if (*slab == NULL || (*slab)->size - (*slab)->used < bytes) {
        mhla_slab *s = new_slab(*slab, bytes);
        if (s == NULL) return NULL;
        *slab = s;
    }
    void *p = (*slab)->base + (*slab)->used;
    (*slab)->used += bytes;
    return p;
}

void mhla_slab_drop(void *memory, size_t bytes) {
    if (memory) advise(memory, bytes, MADV_DONTNEED);
}

void mhla_slab_free(mhla_slab *slab) {
    for (mhla_slab *older; slab; slab = older) {
        older = slab->older;
        mhla_free(slab);
    }
}
