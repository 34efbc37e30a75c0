#include "text/tokenizer_copy.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/status.h"
#include "file/file.h"
#include "file/gguf.h"
#include "text/tokenizer.h"

enum { PATH = 4096 };

static int join(char *to, const char *folder, const char *name) {
    return snprintf(to, PATH, "%s/%s", folder, name) < PATH;
}

static int is_file(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && !S_ISDIR(info.st_mode);
}

static mhla_status copy_file(const char *folder, const char *name, const char *path) {
    char to[PATH];
    mhla_file file;
    mhla_writer w;
    if (!join(to, folder, name)) return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", folder);
    MHLA_TRY(mhla_file_map(&file, path));
    mhla_status status = mhla_writer_open(&w, to);
    if (status == MHLA_OK) {
        fwrite(file.data, 1, file.size, w.stream); /* commit asks for errors */
        status = mhla_writer_commit(&w);
    }
    mhla_file_unmap(&file);
    return status;
}

/* The metadata that belongs to a tokenizer, without any tensor. */
static mhla_status copy_vocabulary(const char *folder, const char *path) {
    char to[PATH];
    mhla_gguf *file = NULL;
    if (!join(to, folder, "tokenizer.gguf")) return mhla_fail(MHLA_EIO, "%.60s...: the path is too long", folder);
    MHLA_TRY(mhla_gguf_open(&file, path));
    const int64_t all = mhla_gguf_value_count(file);
    mhla_gguf_pair *pairs = calloc((size_t)all + 1, sizeof *pairs);
    mhla_status status = pairs ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "%s: no memory for its vocabulary", path);
    int64_t n = 0;
    for (int64_t i = 0; i < all && status == MHLA_OK; i++) {
        const mhla_gguf_value *v = mhla_gguf_value_at(file, i);
        if (strncmp(v->key, "tokenizer.", 10) == 0 || strcmp(v->key, "general.architecture") == 0)
            pairs[n++] = (mhla_gguf_pair){v->key, v->kind, v->array, v->count, v->data, v->strings};
    }
    if (status == MHLA_OK) status = mhla_gguf_write(to, pairs, n, NULL, 0);
    free(pairs);
    mhla_gguf_close(file);
    return status;
}

static int is_one_of(const char *name, const char *const *names) {
    while (*names && strcmp(*names, name) != 0) names++;
    return *names != NULL;
}

/* Under which name a tokenizer's file is found in a folder: its own, or what its contents call for. */
static const char *name_in_folder(const char *base, const mhla_file *file) {
    size_t at = 0;
    if (is_one_of(base, mhla_tokenizer_names)) return base;
    if (file->size > 1 && file->data[0] == 0x1f && file->data[1] == 0x8b) return "bpe_simple_vocab_16e6.txt.gz";
    while (at < file->size && file->data[at] <= ' ') at++;
    return at < file->size && file->data[at] == '{' ? "tokenizer.json" : "tokenizer.model";
}

mhla_status mhla_tokenizer_copy(const char *folder, const char *path) {
    static const char *const pairs[] = {"vocab.json", "merges.txt", "encoder.json", "vocab.bpe", NULL};
    static const char *const beside[] = {"tokenizer_config.json", "chat_template.jinja", NULL};
    char file[PATH], parent[PATH];
    if (!mhla_tokenizer_file(file, sizeof file, path))
        return mhla_fail(MHLA_EIO, "%.200s: no tokenizer is there", path);
    mhla_file bytes;
    MHLA_TRY(mhla_file_map(&bytes, file));
    const int gguf = mhla_gguf_is(bytes.data, bytes.size);
    const char *slash = strrchr(file, '/'), *base = slash ? slash + 1 : file;
    const char *name = name_in_folder(base, &bytes);
    mhla_file_unmap(&bytes);
    if (gguf) return copy_vocabulary(folder, file);
    snprintf(parent, sizeof parent, "%.*s", slash ? (int)(slash - file) : 1, slash ? file : ".");
    const int pair = is_one_of(base, pairs);
    if (!pair) MHLA_TRY(copy_file(folder, name, file));
    for (int k = !pair; k < 2; k++)
        for (const char *const *other = k ? beside : pairs; *other; other++) {
            char from[PATH];
            if (join(from, parent, *other) && is_file(from)) MHLA_TRY(copy_file(folder, *other, from));
        }
    return MHLA_OK;
}
