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

/* Large blocks are walked with strides of many pages: ask for huge ones. Advice only; failing is fine. */
static void advise(char *memory, size_t bytes) {
#ifdef MADV_HUGEPAGE
    const size_t large = (size_t)4 << 20, page = 4096;
    if (bytes < large) return;
    char *begin = (char *)(((uintptr_t)memory + page - 1) & ~(uintptr_t)(page - 1));
    madvise(begin, (bytes - (size_t)(begin - memory)) & ~(page - 1), MADV_HUGEPAGE);
#else
    (void)memory;
    (void)bytes;
#endif
}

void *mhla_alloc(size_t bytes) {
    if (bytes == 0 || bytes > SIZE_MAX - 2 * MHLA_ALIGN) return NULL;
    char *raw = allocate_fn(bytes + MHLA_ALIGN + sizeof(void *));
    if (raw == NULL) return NULL;
    const uintptr_t at = ((uintptr_t)raw + sizeof(void *) + MHLA_ALIGN - 1) & ~(uintptr_t)(MHLA_ALIGN - 1);
    ((void **)at)[-1] = raw;
    advise((char *)at, bytes);
    return (void *)at;
}

void *mhla_alloc_zero(size_t bytes) {
    void *p = mhla_alloc(bytes);
    if (p) memset(p, 0, bytes);
    return p;
}

void mhla_free(void *memory) {
    if (memory) release_fn(((void **)memory)[-1]);
}
