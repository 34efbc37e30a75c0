/* Calls public functions with structs of all sizes (mhla.h, section 1): a test has a row for each function and struct. The struct
 * ends where an inaccessible page begins; a struct that the function only reads is in read-only memory. tests/structs.py compares
 * the rows with the headers. */
#ifndef MHLA_TESTS_STRUCTS_H
#define MHLA_TESTS_STRUCTS_H

#include <sys/mman.h>
#include <unistd.h>

#include "core/status.h"
#include "support.h"

typedef enum struct_use { STRUCT_TAKEN, STRUCT_FILLED, STRUCT_CHANGED, STRUCT_FREED } struct_use;

typedef struct struct_case {
    struct_use use;
    const char *function, *type;
    size_t known;                     /* sizeof(type) */
    mhla_status (*call)(void *given); /* passes this struct, all other arguments being right */
    void (*release)(void *given);     /* frees what a call has put into the struct, or NULL */
    const void *value;                /* [count] what is passed, static so that padding is zero; NULL: random bytes */
    int count;                        /* of an array; 0: one struct */
    int optional;                     /* NULL is legal */
    size_t least;                     /* smallest size that is accepted; 0: a size and one field */
    size_t fewest;                    /* smallest size to try, if missing fields mean hours of work; 0: least */
    size_t compared;                  /* bytes that are the same in each call; 0: all */
    mhla_status status;               /* of a call with the struct in its present size */
} struct_case;

/* The call is the function FUNCTION__TYPE of the test. More members of the row may follow. */
#define STRUCT_ROW(use_, function_, type_, ...)                                                                        \
    {                                                                                                                  \
        .use = (use_), .function = #function_, .type = #type_, .known = sizeof(type_), .call = function_##__##type_,   \
        __VA_ARGS__                                                                                                    \
    }
#define TAKES(function, type, ...) STRUCT_ROW(STRUCT_TAKEN, function, type, __VA_ARGS__)
#define FILLS(function, type, ...) STRUCT_ROW(STRUCT_FILLED, function, type, __VA_ARGS__)
#define CHANGES(function, type, ...) STRUCT_ROW(STRUCT_CHANGED, function, type, __VA_ARGS__)
#define FREES(function, type, ...) STRUCT_ROW(STRUCT_FREED, function, type, __VA_ARGS__)
/* Inside a callback: the struct that it receives has the library's size. */
#define IS_TOLD(function, type, event)                                                                                 \
    do {                                                                                                               \
        function *told_ = NULL;                                                                                        \
        (void)told_;                                                                                                   \
        assert_int_equal(((const type *)(event))->size, sizeof(type));                                                 \
    } while (0)

enum { STRUCT_ROOM = 1 << 16, STRUCT_RUBBISH = 0xA5 };

typedef struct struct_result {
    mhla_status status;
    char message[512];
    unsigned char bytes[4096];
    int changed; /* any byte of what was passed, or before it */
} struct_result;

/* STRUCT_ROOM bytes with a page behind them that nobody may touch. */
static inline unsigned char *struct_room(void) {
    static unsigned char *memory;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (memory == NULL) {
        memory = mmap(NULL, STRUCT_ROOM + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_true(memory != MAP_FAILED);
        assert_int_equal(mprotect(memory + STRUCT_ROOM, page, PROT_NONE), 0);
    }
    mprotect(memory, STRUCT_ROOM, PROT_READ | PROT_WRITE); /* also after a test that failed */
    return memory;
}

static inline mhla_status struct_pass(const struct_case *c, void *given) {
    if (c->use != STRUCT_FREED) return c->call(given);
    mhla_fail(MHLA_EIO, "what failed before"); /* freeing is no failure: the message stays */
    const mhla_status status = c->call(given);
    assert_string_equal(mhla_message(), "what failed before");
    return status;
}

/* Passes a struct of `size` bytes whose field says `said`. Its first `kept` bytes are those of the value, the others zero; the bytes
 * beyond the known ones are `tail` each, or, if tail is 1, the last of them is. */
static inline void struct_call(struct_result *r, const struct_case *c, size_t size, size_t said, size_t kept,
                               int tail) {
    static unsigned char before[STRUCT_ROOM];
    const size_t count = c->count ? (size_t)c->count : 1, bytes = size * count;
    const size_t room = STRUCT_ROOM;
    unsigned char *memory = struct_room(), *given = memory + room - bytes;
    assert_true(bytes <= sizeof r->bytes);
    memset(memory, STRUCT_RUBBISH, room);
    for (size_t i = 0; i < count; i++) {
        unsigned char *at = given + i * size;
        const size_t known = size < c->known ? size : c->known;
        if (c->value) {
            const size_t have = kept < known ? kept : known;
            memcpy(at, (const unsigned char *)c->value + i * c->known, have);
            memset(at + have, 0, size - have);
        }
        if (tail != 1) memset(at + known, tail, size - known);
        if (tail == 1) at[size - 1] = 1;
        memcpy(at, &said, sizeof said);
    }
    memcpy(before, memory, room);
    if (c->use == STRUCT_TAKEN) assert_int_equal(mprotect(memory, room, PROT_READ), 0);
    r->status = struct_pass(c, given);
    snprintf(r->message, sizeof r->message, "%s", r->status == MHLA_OK ? "" : mhla_message());
    assert_int_equal(mprotect(memory, room, PROT_READ | PROT_WRITE), 0);
    r->changed = memcmp(before, memory, room) != 0;
    memcpy(r->bytes, given, bytes);
    assert_memory_equal(before, memory, room - bytes); /* nothing in front of it, */
    assert_memory_equal(&said, given, sizeof said);    /* nor its size */
    if (r->status == MHLA_OK && c->release) c->release(given);
}

static inline void struct_same(const struct_case *c, const struct_result *a, const struct_result *b, size_t size) {
    if (a->status != b->status || strcmp(a->message, b->message) != 0)
        fail_msg("%s with %zu bytes of %s: %s \"%s\", expected %s \"%s\"", c->function, size, c->type,
                 mhla_status_text(a->status), a->message, mhla_status_text(b->status), b->message);
    const size_t compared = c->compared ? c->compared : c->known, n = size < compared ? size : compared;
    if (c->use != STRUCT_FILLED && c->use != STRUCT_CHANGED) return;
    for (size_t at = sizeof(size_t); at < n; at += 8) /* the other four bytes may be padding */
        if (memcmp(a->bytes + at, b->bytes + at, 4) != 0)
            fail_msg("%s with %zu bytes of %s: byte %zu is another", c->function, size, c->type, at);
}

/* The call failed like this and did not write to the struct. */
static inline void struct_refused(const struct_case *c, const struct_result *r, mhla_status status, const char *text) {
    if (c->use == STRUCT_FREED && r->status == MHLA_OK && !r->changed) return; /* it has no status */
    if (r->status != status || strstr(r->message, c->type) == NULL || strstr(r->message, text) == NULL || r->changed)
        fail_msg("%s of a bad %s: %s \"%s\"%s, expected \"%s\"", c->function, c->type, mhla_status_text(r->status),
                 r->message, r->changed ? ", and it is changed" : "", text);
}

static inline void struct_try(const struct_case *c) {
    static struct_result full, one, other;
    const size_t word = sizeof(size_t), known = c->known, least = c->least ? c->least : 2 * word;
    const struct_use use = c->use;
    const int tail = use == STRUCT_FILLED || use == STRUCT_FREED ? STRUCT_RUBBISH : 0;
    char text[128];
    struct_call(&full, c, known, known, known, 0);
    if (full.status != c->status) fail_msg("%s of %s: %s", c->function, c->type, full.message);
    /* smaller: as if the missing fields were zero */
    for (size_t size = c->fewest ? (c->fewest + word - 1) / word * word : least; size < known; size += word) {
        struct_call(&one, c, size, size, size, 0);
        if (use == STRUCT_TAKEN || use == STRUCT_CHANGED) {
            struct_call(&other, c, known, known, size, 0);
            struct_same(c, &one, &other, size);
        } else {
            struct_same(c, &one, &full, size);
        }
    }
    /* larger: unknown fields must be zero, and are set to zero in a struct that is filled */
    for (size_t more = word; more <= 8 * word; more *= 8) {
        struct_call(&one, c, known + more, known + more, known, tail);
        struct_same(c, &one, &full, known + more);
        for (size_t i = known; i < known + more && use == STRUCT_FILLED; i++) assert_int_equal(one.bytes[i], 0);
        if (use != STRUCT_TAKEN && use != STRUCT_CHANGED) continue;
        struct_call(&one, c, known + more, known + more, known, 1);
        snprintf(text, sizeof text, "%s has a field at byte %zu", c->type, known + more - 1);
        struct_refused(c, &one, MHLA_ENOTSUP, text);
    }
    /* absurd: nothing is read, freed or written */
    struct_case wrong = *c;
    if (use == STRUCT_FREED) wrong.value = NULL;
    const size_t bad[] = {0, 1, word, 2 * word + 1, known - 1, known + 4, 65536 + word, SIZE_MAX, SIZE_MAX - 7};
    snprintf(text, sizeof text, "%s.size is ", c->type);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct_call(&one, &wrong, known, bad[i], known, 0);
        struct_refused(c, &one, MHLA_EINVAL, text);
    }
    for (size_t size = 2 * word; size < least; size += word) {
        struct_call(&one, c, size, size, size, 0);
        struct_refused(c, &one, MHLA_EINVAL, "expected at least");
    }
    if (c->count > 1) {
        unsigned char *array = new_bytes((size_t)c->count * known);
        const size_t another = known + word;
        memcpy(array, c->value, (size_t)c->count * known);
        memcpy(array + (size_t)(c->count - 1) * known, &another, sizeof another);
        ASSERT_FAILS(c->call(array), MHLA_EINVAL, "expected the same");
        free(array);
    }
    const int optional = c->optional || use == STRUCT_FREED;
    const mhla_status none = struct_pass(c, NULL);
    if (none != (optional ? MHLA_OK : MHLA_EINVAL) || (!optional && strstr(mhla_message(), "is NULL") == NULL))
        fail_msg("%s of NULL: %s \"%s\"", c->function, mhla_status_text(none), mhla_message());
}

#define STRUCTS_TRY(rows)                                                                                              \
    do {                                                                                                               \
        for (size_t row_ = 0; row_ < sizeof(rows) / sizeof *(rows); row_++) struct_try(&(rows)[row_]);                 \
    } while (0)

#endif
