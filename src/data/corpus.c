#include "data/corpus.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/clock.h"
#include "core/parallel.h"
#include "core/status.h"
#include "file/lists.h"

/* ---- Text to tokens ---------------------------------------------------------------------------------------------------- */

enum { GROUP = 256, GROUP_BYTES = 8 << 20 }; /* documents and bytes at once */

typedef struct encoding {
    const mhla_documents *documents;
    const mhla_tokenizer *tokenizer;
    int64_t first; /* document of the group */
    mhla_ids ids[GROUP];
    mhla_status status[GROUP];
    char message[GROUP][240];
} encoding;

static void encode_task(void *arg, int64_t i, int worker) {
    encoding *e = arg;
    (void)worker;
    size_t bytes;
    const char *text = mhla_documents_text(e->documents, e->first + i, &bytes);
    e->ids[i].count = 0;
    /* Text of strangers: what looks like a special token in it is text. */
    e->status[i] = mhla_tokenizer_encode(e->tokenizer, &e->ids[i], text, bytes, MHLA_ENCODE_PLAIN);
    if (e->status[i] != MHLA_OK) snprintf(e->message[i], sizeof e->message[i], "%s", mhla_message());
}

mhla_status mhla_documents_encode(const mhla_documents *documents, const mhla_tokenizer *tokenizer,
                                  const mhla_context *context, mhla_encoded_fn sink, void *user,
                                  mhla_progress_fn progress, void *progress_user) {
    const int64_t count = mhla_documents_count(documents);
    encoding *e = calloc(1, sizeof *e);
    if (e == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for tokens");
    e->documents = documents;
    e->tokenizer = tokenizer;
    int64_t all = 0, done = 0;
    size_t bytes;
    for (int64_t i = 0; i < count; i++) all += (mhla_documents_text(documents, i, &bytes), (int64_t)bytes);
    mhla_status status = MHLA_OK;
    while (e->first < count && status == MHLA_OK) {
        int n = 0;
        for (size_t held = 0; n < GROUP && e->first + n < count && held < GROUP_BYTES; n++, held += bytes)
            mhla_documents_text(documents, e->first + n, &bytes);
        mhla_parallel(context, n, encode_task, e);
        for (int i = 0; i < n && status == MHLA_OK; i++) {
            mhla_documents_text(documents, e->first + i, &bytes);
            if (e->status[i] != MHLA_OK)
                status = mhla_fail(e->status[i], "document %lld: %s", (long long)(e->first + i), e->message[i]);
            else
                status = sink(user, e->ids[i].data, e->ids[i].count, bytes);
            done += (int64_t)bytes;
        }
        e->first += n;
        if (progress && status == MHLA_OK) progress(progress_user, done, all);
    }
    for (int i = 0; i < GROUP; i++) mhla_ids_free(&e->ids[i]);
    free(e);
    return status;
}

/* ---- Making shards ------------------------------------------------------------------------------------------------------- */

static mhla_status tell(mhla_shard_info *info, const mhla_shard_head *h, double taken) {
    const mhla_shard_info full = {sizeof full, h->documents, h->tokens, h->bytes, h->vocabulary, taken};
    return mhla_struct_out(info, &full, sizeof full, "mhla_shard_info");
}

/* What every shard of a tokenizer says of it. */
static mhla_status describe(mhla_shard_head *h, mhla_tokenizer **tokenizer, const char *path) {
    mhla_tokenizer_info info = {.size = sizeof info};
    *h = (mhla_shard_head){0};
    MHLA_TRY(mhla_tokenizer_open(tokenizer, path));
    MHLA_TRY(mhla_tokenizer_query(*tokenizer, &info));
    h->vocabulary = info.vocabulary;
    h->bos = info.bos;
    h->eos = info.eos;
    return mhla_shard_fingerprint(h->fingerprint, path);
}

static mhla_status write_document(void *user, const int32_t *ids, int64_t count, size_t bytes) {
    return mhla_shard_writer_add(user, ids, count, bytes);
}

mhla_status mhla_shard_make(const char *path, const char *tokenizer, const char *const *paths, int count,
                            const mhla_context *context, mhla_shard_info *info, mhla_progress_fn progress, void *user) {
    const double begin = mhla_seconds();
    mhla_tokenizer *t = NULL;
    mhla_documents *documents = NULL;
    mhla_shard_writer *w = NULL;
    mhla_shard_head h;
    if (info) MHLA_TRY(mhla_struct_check(info, 0, "mhla_shard_info"));
    mhla_status status = describe(&h, &t, tokenizer);
    if (status == MHLA_OK) status = mhla_documents_open(&documents, paths, count);
    if (status == MHLA_OK) status = mhla_shard_writer_open(&w, path, &h);
    if (status == MHLA_OK) status = mhla_documents_encode(documents, t, context, write_document, w, progress, user);
    if (status == MHLA_OK)
        status = mhla_shard_writer_commit(w, &h);
    else
        mhla_shard_writer_discard(w);
    mhla_documents_free(documents);
    mhla_tokenizer_free(t);
    return status == MHLA_OK && info ? tell(info, &h, mhla_seconds() - begin) : status;
}

mhla_status mhla_shard_query(const char *path, mhla_shard_info *info) {
    mhla_shard *s = NULL;
    MHLA_TRY(mhla_shard_open(&s, path));
    const mhla_status status = tell(info, mhla_shard_head_of(s), 0.0);
    mhla_shard_free(s);
    return status;
}

/* ---- The corpus ------------------------------------------------------------------------------------------------------------ */

typedef struct piece {
    mhla_shard *shard;
    int64_t first, first_document, first_byte; /* in the corpus */
} piece;

struct mhla_corpus {
    mhla_shard_head head;
    piece *pieces; /* [count], or none: text */
    int64_t count;
    mhla_ids ids;           /* of text */
    int64_t *starts, *ends; /* of its documents: [documents + 1] in tokens, in bytes */
    int64_t room;
};

static int ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), m = strlen(end);
    return n > m && strcmp(text + n - m, end) == 0;
}

static mhla_status add_shard(mhla_corpus *c, const char *path) {
    mhla_shard *s = NULL;
    MHLA_TRY(mhla_shard_open(&s, path));
    const mhla_shard_head *h = mhla_shard_head_of(s);
    piece *more = realloc(c->pieces, (size_t)(c->count + 1) * sizeof *more);
    if (more) c->pieces = more;
    mhla_status status = more ? MHLA_OK : mhla_fail(MHLA_ENOMEM, "no memory for a list of shards");
    if (status == MHLA_OK && c->count > 0 &&
        (memcmp(h->fingerprint, c->head.fingerprint, sizeof h->fingerprint) != 0 ||
         h->vocabulary != c->head.vocabulary))
        status = mhla_fail(MHLA_EDATA, "%s: made with another tokenizer than the shards before it", path);
    if (status != MHLA_OK) {
        mhla_shard_free(s);
        return status;
    }
    const mhla_shard_head before = c->head;
    c->pieces[c->count++] = (piece){s, before.tokens, before.documents, before.bytes};
    c->head = *h;
    c->head.tokens += before.tokens;
    c->head.documents += before.documents;
    c->head.bytes += before.bytes;
    return MHLA_OK;
}

static int is_shard(const struct dirent *e) { return e->d_name[0] != '.' && ends_with(e->d_name, ".shard"); }
static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

/* All shards of a folder; c->count stays 0 where it has none. */
static mhla_status add_folder(mhla_corpus *c, const char *path) {
    struct dirent **names;
    const int n = scandir(path, &names, is_shard, by_name);
    mhla_status status = MHLA_OK;
    for (int i = 0; i < n; i++) {
        char inner[4096];
        if (status == MHLA_OK && snprintf(inner, sizeof inner, "%s/%s", path, names[i]->d_name) >= (int)sizeof inner)
            status = mhla_fail(MHLA_EIO, "%.60s...: the path is too long", path);
        if (status == MHLA_OK) status = add_shard(c, inner);
        free(names[i]);
    }
    if (n >= 0) free(names);
    return status;
}

static mhla_status keep_document(void *user, const int32_t *ids, int64_t count, size_t bytes) {
    mhla_corpus *c = user;
    mhla_shard_head *h = &c->head;
    if (h->documents + 2 > c->room) {
        const int64_t room = c->room ? 2 * c->room : 1024;
        int64_t *starts = realloc(c->starts, (size_t)room * sizeof *starts);
        if (starts) c->starts = starts;
        int64_t *ends = realloc(c->ends, (size_t)room * sizeof *ends);
        if (ends) c->ends = ends;
        if (starts == NULL || ends == NULL)
            return mhla_fail(MHLA_ENOMEM, "no memory for %lld documents", (long long)room);
        c->room = room;
        c->starts[h->documents] = h->tokens;
        c->ends[h->documents] = h->bytes;
    }
    MHLA_TRY(mhla_ids_append(&c->ids, ids, count));
    h->tokens += count;
    h->bytes += (int64_t)bytes;
    h->documents++;
    c->starts[h->documents] = h->tokens;
    c->ends[h->documents] = h->bytes;
    return MHLA_OK;
}

static mhla_status read_text(mhla_corpus *c, const char *path, const char *tokenizer, const mhla_context *context) {
    mhla_tokenizer *t = NULL;
    mhla_documents *documents = NULL;
    mhla_status status = describe(&c->head, &t, tokenizer);
    if (status == MHLA_OK) status = mhla_documents_open(&documents, &path, 1);
    if (status == MHLA_OK) status = mhla_documents_encode(documents, t, context, keep_document, c, NULL, NULL);
    mhla_documents_free(documents);
    mhla_tokenizer_free(t);
    return status;
}

mhla_status mhla_corpus_open(mhla_corpus **corpus, const char *path, const char *tokenizer,
                             const mhla_context *context) {
    *corpus = NULL;
    struct stat info;
    mhla_corpus *c = calloc(1, sizeof *c);
    if (c == NULL) return mhla_fail(MHLA_ENOMEM, "no memory for a corpus");
    mhla_status status = MHLA_OK;
    if (ends_with(path, ".shard"))
        status = add_shard(c, path);
    else if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        status = add_folder(c, path);
    if (status == MHLA_OK && c->count > 0 && tokenizer) {
        unsigned char fingerprint[32];
        status = mhla_shard_fingerprint(fingerprint, tokenizer);
        if (status == MHLA_OK && memcmp(fingerprint, c->head.fingerprint, sizeof fingerprint) != 0)
            status = mhla_fail(MHLA_EDATA, "%s: made with another tokenizer than %s", path, tokenizer);
    }
    if (status == MHLA_OK && c->count == 0)
        status = tokenizer ? read_text(c, path, tokenizer, context)
                           : mhla_fail(MHLA_EINVAL, "%s: this is text; which tokenizer is to be used?", path);
    if (status == MHLA_OK && c->head.tokens == 0) status = mhla_fail(MHLA_EDATA, "%s: no text in it", path);
    if (status != MHLA_OK) {
        mhla_corpus_free(c);
        return status;
    }
    *corpus = c;
    return MHLA_OK;
}

void mhla_corpus_free(mhla_corpus *c) {
    if (c == NULL) return;
    for (int64_t i = 0; i < c->count; i++) mhla_shard_free(c->pieces[i].shard);
    free(c->pieces);
    mhla_ids_free(&c->ids);
    free(c->starts);
    free(c->ends);
    free(c);
}

const mhla_shard_head *mhla_corpus_head(const mhla_corpus *c) { return &c->head; }

/* The last piece whose first token, or document, is not after `at`. */
static const piece *piece_of(const mhla_corpus *c, int64_t at, int documents) {
    int64_t low = 0, high = c->count - 1;
    while (low < high) {
        const int64_t middle = (low + high + 1) / 2,
                      first = documents ? c->pieces[middle].first_document : c->pieces[middle].first;
        if (first <= at)
            low = middle;
        else
            high = middle - 1;
    }
    return &c->pieces[low];
}

int64_t mhla_corpus_start(const mhla_corpus *c, int64_t document) {
    if (c->count == 0) return c->starts[document];
    const piece *p = piece_of(c, document, 1);
    return p->first + mhla_shard_start(p->shard, document - p->first_document);
}

int64_t mhla_corpus_byte(const mhla_corpus *c, int64_t document) {
    if (c->count == 0) return c->ends[document];
    const piece *p = piece_of(c, document, 1);
    return p->first_byte + mhla_shard_byte(p->shard, document - p->first_document);
}

mhla_status mhla_corpus_read(const mhla_corpus *c, int32_t *ids, int64_t at, int64_t count) {
    if (c->count == 0) {
        memcpy(ids, c->ids.data + at, (size_t)count * sizeof *ids);
        return MHLA_OK;
    }
    while (count > 0) {
        const piece *p = piece_of(c, at, 0);
        const int64_t left = p->first + mhla_shard_head_of(p->shard)->tokens - at, n = count < left ? count : left;
        MHLA_TRY(mhla_shard_read(p->shard, ids, at - p->first, n));
        ids += n;
        at += n;
        count -= n;
    }
    return MHLA_OK;
}

int mhla_corpus_part(char *path, size_t size, const char *folder, const char *part) {
    static const char *const ends[] = {".shard", "", ".txt", ".jsonl"};
    static const char *const others[] = {"valid", "val", "test"};
    const int names = strcmp(part, "validation") == 0 ? 4 : 1;
    struct stat info;
    for (int n = 0; n < names; n++)
        for (int i = 0; i < 4; i++)
            if (snprintf(path, size, "%s/%s%s", folder, n ? others[n - 1] : part, ends[i]) < (int)size &&
                stat(path, &info) == 0)
                return 1;
    return 0;
}
