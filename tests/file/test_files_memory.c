/* Readers and writers without memory: each allocation of a call fails once, the first, the second, ...; the call then
 * fails or gets by without, and leaves neither memory nor files behind. malloc is replaced here, which sanitizers do not
 * like: they skip this. */
#include <malloc.h>

#include "file/json.h"
#include "file/npy.h"
#include "file/recipe.h"
#include "file/safetensors.h"
#include "files.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
#define REPLACED 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define REPLACED 0
#endif
#endif
#ifndef REPLACED
#define REPLACED 1
#endif

static int64_t allowed = -1; /* allocations until one fails; -1: none fails */
static int64_t alive;        /* allocated and not yet freed since the count began */

#if REPLACED
void *__libc_malloc(size_t size);                /* NOLINT */
void *__libc_calloc(size_t count, size_t size);  /* NOLINT */
void *__libc_realloc(void *memory, size_t size); /* NOLINT */
void __libc_free(void *memory);                  /* NOLINT */

/* the shared libraries must find these, too */
#pragma GCC visibility push(default)
static int fails(void) { return allowed >= 0 && allowed-- == 0; }

void *malloc(size_t size) {
    if (fails()) return NULL;
    void *memory = __libc_malloc(size);
    alive += memory != NULL;
    return memory;
}
void *calloc(size_t count, size_t size) {
    if (fails()) return NULL;
    void *memory = __libc_calloc(count, size);
    alive += memory != NULL;
    return memory;
}
void *realloc(void *memory, size_t size) {
    if (fails()) return NULL;
    alive += memory == NULL;
    return __libc_realloc(memory, size);
}
void free(void *memory) {
    alive -= memory != NULL;
    __libc_free(memory);
}
#pragma GCC visibility pop
#endif

/* ---- Calls that succeed with memory ---- */

static char safetensors[256], sharded[256], torch[256], toml[256], recipe_json[256], npy[256], written[256];

static const mhla_recipe_row rows[] = {{"train.epochs", MHLA_RECIPE_INT, "5", 1, 100, NULL, ""},
                                       {"model.name", MHLA_RECIPE_TEXT, "x", 0, 0, NULL, ""},
                                       {"data.size", MHLA_RECIPE_INTS, "1,2", 0, 0, NULL, ""},
                                       {0}};

static mhla_status open_and_close(const char *path) {
    mhla_safetensors *f;
    const mhla_status status = mhla_safetensors_open(&f, path);
    if (status == MHLA_OK) mhla_safetensors_close(f);
    return status;
}
static mhla_status open_one(void) { return open_and_close(safetensors); }
static mhla_status open_index(void) { return open_and_close(sharded); }
static mhla_status open_torch(void) { return open_and_close(torch); }
static mhla_status load_json(void) {
    json_t *tree;
    const mhla_status status = mhla_json_load(&tree, recipe_json);
    json_decref(tree);
    return status;
}
static mhla_status load_recipe(const char *path) {
    mhla_recipe *r;
    mhla_status status = mhla_recipe_create(&r, rows);
    if (status != MHLA_OK) return status;
    status = mhla_recipe_load(r, path);
    if (status == MHLA_OK) status = mhla_recipe_assign(r, "data.size=3,4,5");
    if (status == MHLA_OK) {
        json_t *tree = mhla_recipe_tree(r);
        if (tree == NULL) status = MHLA_ENOMEM;
        json_decref(tree);
    }
    mhla_recipe_free(r);
    return status;
}
static mhla_status load_toml(void) { return load_recipe(toml); }
static mhla_status load_recipe_json(void) { return load_recipe(recipe_json); }
static mhla_status open_npy(void) {
    mhla_npy a;
    const mhla_status status = mhla_npy_open(&a, npy);
    mhla_npy_close(&a);
    return status;
}

static const float x[] = {1, 2, 3, 4};
static const int64_t four[] = {4};
static const mhla_storable tensors[] = {{"a", 1, four, x, MHLA_IO_F32, MHLA_IO_F32},
                                        {"b", 1, four, x, MHLA_IO_F32, MHLA_IO_BF16}};
static const mhla_pair pairs[] = {{"format", "pt"}, {"a", "b"}};

static mhla_status write_one(void) { return mhla_safetensors_write(written, tensors, 2, pairs, 2); }
static mhla_status write_folder(void) {
    const mhla_status status = mhla_safetensors_write_folder(written, tensors, 2, pairs, 2, 16, NULL, NULL);
    if (status != MHLA_OK) return status;
    static const char *const names[] = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                                        "model.safetensors.index.json"};
    for (int i = 0; i < 3; i++) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", written, names[i]);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(written), 0);
    return status;
}
static mhla_status write_json(void) {
    json_t *tree = json_pack("{s:i}", "a", 1);
    const mhla_status status = tree ? mhla_json_save(tree, written) : MHLA_ENOMEM;
    json_decref(tree);
    return status;
}
static mhla_status write_line(void) {
    mhla_jsonl log;
    const mhla_status opened = mhla_jsonl_open(&log, written);
    if (opened != MHLA_OK) return opened;
    const mhla_status status = mhla_jsonl_write(&log, json_pack("{s:i}", "a", 1));
    const mhla_status closed = mhla_jsonl_close(&log);
    return status == MHLA_OK ? closed : status;
}

static void try_all(mhla_status (*call)(void), const char *name) {
    assert_int_equal(call(), MHLA_OK); /* once with memory: what libraries keep for themselves is theirs */
    const int before = entries(folder);
    int64_t n = 0;
    for (;; n++) {
        if (exists(written)) unlink(written);
        alive = 0;
        allowed = n;
        const mhla_status status = call();
        const int reached = allowed < 0; /* the failure was met, not saved up */
        allowed = -1;
        if (alive != 0)
            fail_msg("%s: %lld allocations left after the failure of number %lld", name, (long long)alive,
                     (long long)n);
        if (!reached) {
            assert_int_equal(status, MHLA_OK);
            break;
        }
        /* any status but a crash: jansson takes a text that it has no memory for as wrong JSON, stdio gets by without a buffer */
        if (status != MHLA_OK) assert_false(exists(written));
    }
    if (exists(written)) unlink(written);
    assert_true(entries(folder) <= before); /* no temporary file is left */
    print_message("%s: %lld allocations\n", name, (long long)n);
}

static void without_memory(void **state) {
    (void)state;
    if (!REPLACED) skip();
    static const struct {
        mhla_status (*call)(void);
        const char *name;
    } calls[] = {{open_one, "open"},        {open_index, "open an index"}, {open_torch, "open a checkpoint of PyTorch"},
                 {load_json, "JSON"},       {load_toml, "TOML"},           {load_recipe_json, "recipe in JSON"},
                 {open_npy, "npy"},         {write_one, "write"},          {write_folder, "write a folder"},
                 {write_json, "write JSON"}};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) try_all(calls[i].call, calls[i].name);
}

/* A log is not a file that is whole or not there: only what is left of memory is looked at. */
static void lines_without_memory(void **state) {
    (void)state;
    if (!REPLACED) skip();
    assert_int_equal(write_line(), MHLA_OK);
    for (int64_t n = 0;; n++) {
        alive = 0;
        allowed = n;
        const mhla_status status = write_line();
        const int reached = allowed < 0;
        allowed = -1;
        assert_int_equal(alive, 0);
        if (!reached) break;
        assert_true(status == MHLA_ENOMEM || status == MHLA_OK);
    }
}

/* The older format of torch.save: a dictionary of one transposed tensor, whose elements are copied. */
static const char torch_bytes[] =
    "\x80\2\x8a\x0al\xfc\x9c\x46\xf9 "
    "j\xa8P\x19.\x80\2M\xe9\3.\x80\2}.\x80\2}X\1\0\0\0wctorch._utils\n_rebuild_tensor_v2\n("
    "(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0000X\3\0\0\0cpuK\4tQK\0(K\2K\2t(K\1K\2t\x89}tRs.\x80\2]"
    "X\1\0\0\0000a."
    "\4\0\0\0\0\0\0\0abcdefghijklmnop";

static int make_files(void **state) {
    if (make_folder(state) != 0) return -1;
    snprintf(safetensors, sizeof safetensors, "%s/x.safetensors", folder);
    snprintf(sharded, sizeof sharded, "%s/shards", folder);
    snprintf(torch, sizeof torch, "%s/x.pth", folder);
    snprintf(toml, sizeof toml, "%s/x.toml", folder);
    snprintf(recipe_json, sizeof recipe_json, "%s/x.json", folder);
    snprintf(npy, sizeof npy, "%s/x.npy", folder);
    snprintf(written, sizeof written, "%s/written", folder);
    static const char toml_text[] = "[train]\nepochs = 3\n[data]\nsize = [1, 2]\n[model]\nname = 'y'\n";
    static const char json_text[] = "{\"train\":{\"epochs\":3},\"data\":{\"size\":[1,2]},\"model\":{\"name\":\"y\"}}";
    write_file(torch, torch_bytes, sizeof torch_bytes - 1);
    write_file(toml, toml_text, sizeof toml_text - 1);
    write_file(recipe_json, json_text, sizeof json_text - 1);
    return mhla_safetensors_write(safetensors, tensors, 2, pairs, 2) ||
           mhla_safetensors_write_folder(sharded, tensors, 2, pairs, 2, 16, NULL, NULL) ||
           mhla_npy_write(npy, MHLA_IO_F32, 1, four, x);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(without_memory), cmocka_unit_test(lines_without_memory)};
    return cmocka_run_group_tests(tests, make_files, remove_folder);
}
